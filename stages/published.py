"""Numbers that others published, to stand beside ours and never among them.

Source: Embedded Language Flows, arXiv 2605.10938 version 2, whose tables hold its own numbers and, under the same
protocol, those of the methods it compares with. Nothing here was measured by this program.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

PublishedTask = Literal["owt", "wmt14", "xsum"]


@dataclass(frozen=True, slots=True)
class PublishedPoint:
    """A setting of a method: Gen-PPL with its standard error where it was told, and entropy in nats."""

    label: str
    ppl: float
    entropy: float | None
    error: float | None = None


@dataclass(frozen=True, slots=True)
class PublishedSeries:
    """Settings of one method that differ in one thing."""

    method: str
    points: tuple[PublishedPoint, ...]


@dataclass(frozen=True, slots=True)
class Published:
    """What was published of a task: its protocol in words, and where ours departs from it.

    Texts from noise have ``series``, pairs have ``rows`` of scores under ``heads``. ``judge`` and ``window`` are those
    of the Gen-PPL, empty where there is none.
    """

    title: str
    protocol: str
    differs: str
    judge: str = ""
    window: int = 0
    series: tuple[PublishedSeries, ...] = ()
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, tuple[float | None, ...]], ...] = ()

    def judged_by(self, name: str, window: int) -> bool:
        """Whether a judge of that name and window is the one behind these numbers."""
        return bool(self.judge) and (_plain(name), window) == (_plain(self.judge), self.window)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _by_steps(method: str, figures: Mapping[int, tuple[float, float]]) -> PublishedSeries:
    points = (
        PublishedPoint(f"{steps} steps" if steps > 1 else "1 step", *each) for steps, each in figures.items()
    )
    return PublishedSeries(method, tuple(points))


def _by_guidance(method: str, figures: Mapping[float, tuple[float, float | None]]) -> PublishedSeries:
    points = (PublishedPoint(f"ω {guidance:g}", *each) for guidance, each in figures.items())
    return PublishedSeries(method, tuple(points))


OWT = Published(
    title="OpenWebText, as published (arXiv 2605.10938)",
    judge="GPT-2 large",
    window=1024,
    protocol="Gen-PPL and entropy of 1,000 texts a seed under GPT-2 large, the first 1,024 of its tokens; mean of the "
    "seeds, ± standard error where it was told. Trained at length 1,024: ELF-B on 45 G tokens, MDLM, Duo and FLM on "
    "524 G.",
    differs="The authors' program pads texts with the end mark to the longest of a batch and counts the first of those "
    "(one version also counts tokens between two end marks twice). Here nothing is appended and every token counts "
    "once, so the same texts score a little differently.",
    series=(
        PublishedSeries(
            "ELF-B, SDE, ω 3",
            (
                PublishedPoint("8 steps", 67.32, 5.14, 2.25),
                PublishedPoint("16 steps", 33.66, 5.16, 1.09),
                PublishedPoint("32 steps", 24.08, 5.15, 0.16),
            ),
        ),
        _by_guidance(
            "ELF-B, ODE, 64 steps",
            {0.5: (104.29, 5.51), 1: (65.30, 5.40), 2: (34.65, 5.23), 3: (26.62, 5.15)},
        ),
        _by_guidance("ELF-B, SDE, 64 steps", {0.5: (36.77, 5.28), 3: (19.72, 5.10)}),
        _by_guidance("ELF-M, SDE, 64 steps", {3: (21.69, 5.18)}),
        _by_guidance("ELF-L, SDE, 64 steps", {3: (23.31, 5.28), 4: (21.37, None)}),
        _by_steps(
            "ELF+PD",
            {
                1: (136.10, 5.26), 2: (68.25, 5.24), 4: (34.33, 5.16),
                8: (23.18, 5.07), 16: (22.12, 5.06), 32: (21.32, 5.04),
            },
        ),
        _by_steps(
            "MDLM+SDTT",
            {
                1: (1260.6, 5.26), 2: (877.22, 5.34), 4: (339.73, 5.38),
                8: (112.66, 5.41), 16: (57.74, 5.39), 32: (40.41, 5.34),
            },
        ),
        _by_steps(
            "Duo+DCD",
            {
                1: (5743.9, 6.02), 2: (891.16, 5.41), 4: (250.86, 5.37),
                8: (118.21, 5.41), 16: (78.74, 5.43), 32: (63.98, 5.40),
            },
        ),
        _by_steps(
            "FMLM",
            {
                1: (168.30, 5.17), 2: (133.29, 5.25), 4: (111.31, 5.26),
                8: (86.50, 5.36), 16: (63.63, 5.29), 32: (45.09, 5.25),
            },
        ),
    ),
)  # fmt: skip
WMT14 = Published(
    title="WMT14 German to English, as published (arXiv 2605.10938)",
    protocol="BLEU by sacrebleu over newstest2014, lower-cased, effective order; no judge.",
    differs="Ours is the column BLEU of the row that was sampled from the test split, against references after the "
    "tokenizer's round trip.",
    heads=("BLEU",),
    rows=(
        ("ELF-B, ODE, 64 steps, w 2, ω 1", (26.4,)),
        ("autoregressive", (25.2,)),
        ("MDLM", (18.4,)),
        ("Duo", (21.3,)),
        ("E2D2", (24.8,)),
        ("SeqDiffuSeq", (21.3,)),
        ("CDCD", (24.9,)),
    ),
)
XSUM = Published(
    title="XSum, as published (arXiv 2605.10938)",
    protocol="ROUGE by rouge_score over the test split, F-measure × 100, stemmed; no judge.",
    differs="Ours are the columns ROUGE of the row that was sampled from the test split, against references after the "
    "tokenizer's round trip.",
    heads=("ROUGE‑1", "ROUGE‑2", "ROUGE‑L"),
    rows=(
        ("ELF-B, ODE, 64 steps, w 2, ω 1", (36.0, 12.2, 27.8)),
        ("autoregressive", (30.5, 10.2, 24.4)),
        ("MDLM", (33.4, 11.6, 25.8)),
        ("Duo", (31.4, 10.1, 25.0)),
        ("E2D2", (28.4, 8.3, 22.0)),
        ("SeqDiffuSeq", (19.3, 1.7, 14.1)),
    ),
)


@dataclass(frozen=True, slots=True)
class PublishedTokens:
    """What a method was trained on: tokens of the documents times epochs, and, where it was counted so too, rows times
    their length."""

    method: str
    by_documents: float
    by_rows: float | None = None


TRAINED: tuple[PublishedTokens, ...] = (
    PublishedTokens("ELF-B", 45.2e9, 49.9e9),
    PublishedTokens("MDLM", 524.3e9),
    PublishedTokens("Duo", 524.3e9),
    PublishedTokens("FLM", 524.3e9),
    PublishedTokens("LangFlow", 524.3e9),
)
"""On OpenWebText. ELF-B: five epochs of 9.04 G tokens, 49.9 G where rows of 1,024 are counted."""
TRAINED_ON_PAIRS: tuple[PublishedTokens, ...] = (
    PublishedTokens("ELF-B, WMT14, targets", 100 * 144e6),
    PublishedTokens("ELF-B, XSum, targets", 100 * 6e6),
)
"""A hundred epochs of what targets there are; sources are not counted."""
PUBLISHED: Mapping[PublishedTask, Published] = {"owt": OWT, "wmt14": WMT14, "xsum": XSUM}
