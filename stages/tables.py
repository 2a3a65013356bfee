"""The tables and figures of the paper that ours stand beside: which settings of which configurations make a row.

Data only. Published figures are looked up in ``elf.stages.published``; ours are found in a store by the keys of the
shipped configurations, whoever made them (``elf.flows.table_rows``).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from elf.stages.published import OWT, PUBLISHED, PublishedPoint, PublishedTask


@dataclass(frozen=True, slots=True)
class Ours:
    """The scores of a sampling setting of a shipped configuration; of a sweep, those of one variant."""

    config: str
    setting: str
    variant: str = ""


class Figure(NamedTuple):
    """A published number, with its standard error where that was told."""

    value: float
    error: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A row: ``ours`` is None for a method that is none of ours; ``published`` by the scores of its table."""

    label: str
    ours: Ours | None = None
    published: tuple[Figure | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """Rows under a heading."""

    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """A column: what it is called in ``metrics.json`` and on the table, and its digits."""

    name: str
    head: str
    digits: int


@dataclass(frozen=True, slots=True)
class Table:
    """``about``: one line. ``groups`` are its rows; where there are none they are those of ``swept``: the variants of
    that configuration, each by the scores of ``setting``, or its sampling settings where it has no variants.
    ``known``: the variants that published numbers are of."""

    name: str
    about: str
    task: PublishedTask
    scores: tuple[Score, ...]
    groups: tuple[Group, ...] = ()
    swept: str = ""
    setting: str = ""
    known: Mapping[str, tuple[Figure | None, ...]] | None = None


PLANE = (Score("gen_ppl", "Gen-PPL", 2), Score("entropy", "entropy", 2))
BLEU = (Score("bleu", "BLEU", 1),)
ROUGE = (Score("rouge_1", "R-1", 1), Score("rouge_2", "R-2", 1), Score("rouge_l", "R-L", 1))
TOKENS = "tokens"
"""The table of training tokens, which has no scores."""


def _figures(point: PublishedPoint) -> tuple[Figure | None, ...]:
    return Figure(point.ppl, point.error), None if point.entropy is None else Figure(point.entropy)


def _published(method: str) -> dict[str, tuple[Figure | None, ...]]:
    """The points of a series of OpenWebText by their labels."""
    series = next(each for each in OWT.series if each.method == method)
    return {point.label: _figures(point) for point in series.points}


def _series(method: str, ours: Mapping[str, Ours] | None = None) -> Group:
    """A published series beside ours; settings of ours beyond it stand in their order."""
    there, mine = _published(method), ours or {}
    labels = [*mine, *(label for label in there if label not in mine)]
    return Group(method, tuple(Row(label, mine.get(label), there.get(label, ())) for label in labels))


def _settings(config: str, name: str, values: Iterable[float], told: str) -> dict[str, Ours]:
    """Those that ``over`` makes, by what a published table calls them."""
    return {told.format(value): Ours(config, f"{name}={value:g}") for value in values}


def _pairs(task: PublishedTask, config: str) -> tuple[Group, ...]:
    """The first published row is our model, the others are their competitors."""
    rows = [
        Row(
            method,
            Ours(config, "ode-64") if not place else None,
            tuple(None if each is None else Figure(each) for each in figures),
        )
        for place, (method, figures) in enumerate(PUBLISHED[task].rows)
    ]
    return (Group("", tuple(rows)),)


_STEPS = {f"{steps} steps": Ours("owt-full", f"sde-{steps}") for steps in (8, 16, 32)}
_GUIDED = (0.5, 1, 2, 3, 4, 5)
_ODE = _settings("owt-frontier", "ode-guidance", _GUIDED, "ω {:g}")
_SDE = _settings("owt-frontier", "sde-guidance", _GUIDED, "ω {:g}")
_DISTILLED = {
    f"{steps} steps" if steps > 1 else "1 step": Ours("owt-pd", f"pd-{steps}")
    for steps in (1, 2, 4, 8, 16, 32)
}
_B, _M, _L = (_published(f"ELF-{size}, SDE, 64 steps")["ω 3"] for size in "BML")


def _rest() -> tuple[Group, ...]:
    """What else owt-frontier sweeps, all at 32 steps and ω 3."""
    return (
        Group("SDE, 32 steps, ω 3, by noise", _alone("noise-gamma", (0, 0.5, 1, 1.5), "γ {}")),
        Group("SDE, 32 steps, by grid", _alone("grid-grid", ("uniform", "quantile"), "{}")),
        Group("SDE, 32 steps, by form", _alone("form-sde_form", ("paper", "variance_matched"), "{}")),
    )


def _alone(name: str, values: Iterable[float | str], told: str) -> tuple[Row, ...]:
    return tuple(Row(told.format(value), Ours("owt-frontier", f"{name}={value}")) for value in values)


def _ablation(name: str, about: str, known: Mapping[str, tuple[Figure | None, ...]]) -> Table:
    """A sweep over owt-full, each variant by its texts of 64 steps."""
    return Table(
        f"ablation-{name}", about, "owt", PLANE, swept=f"ablations/{name}", setting="sde-64", known=known
    )


def _baselines() -> tuple[Group, ...]:
    """Variants of one sweep, each with samplers of its own."""
    of = "ablations/baselines"
    flow = {f"{steps} steps": Ours(of, f"sde-{steps}", "flow") for steps in (8, 16, 32)}
    masked = (8, 16, 32, 64, 1024)
    return (
        _series("ELF-B, SDE, ω 3", flow),
        Group("ELF-B, SDE, 64 steps", (Row("ω 3", Ours(of, "sde-64", "flow"), _B),)),
        Group(
            "autoregressive, same tokens",
            (
                Row("plain", Ours(of, "plain", "autoregressive")),
                Row("nucleus 0.9", Ours(of, "top-p", "autoregressive")),
            ),
        ),
        Group(
            "masked diffusion, same tokens",
            tuple(Row(f"{steps:,} steps", Ours(of, f"masked-steps={steps}", "masked")) for steps in masked),
        ),
    )


_ABLATIONS = (
    Table(
        "ablation-baselines",
        "OpenWebText: flow and baselines, same tokens",
        "owt",
        PLANE,
        _baselines(),
    ),
    _ablation("bottleneck", "width of the input bottleneck", {"bottleneck=128": _B}),
    _ablation("conditioning", "prefix tokens, or adaLN-Zero", {"conditioning=prefix": _B}),
    _ablation("decoder", "one trunk with two heads, or two trunks", {"decoder=shared": _B}),
    _ablation("denoise-share", "share of rows that train the decode head", {"decode_share=0.2": _B}),
    _ablation("embeddings", "whose states the flow aims at", {"t5-small": _B}),
    _ablation("optimiser", "Muon, or AdamW", {"muon": _B}),
    _ablation("prediction", "what is predicted, over the width of embeddings", {"t5-small-prediction=x": _B}),
    _ablation("self-conditioning", "how much, with guidance tokens and without", {"half": _B}),
    _ablation("size", "depth and width of the network", {"B": _B, "M": _M, "L": _L}),
    Table(
        "ablation-input-guidance",
        "WMT14 German to English: w, guidance on the source",
        "wmt14",
        BLEU,
        swept="ablations/input-guidance",
        known={"w-input_guidance=2": (Figure(26.4),)},
    ),
)
TABLES: Mapping[str, Table] = {
    table.name: table
    for table in (
        Table(
            "owt-steps",
            "OpenWebText: ELF-B, few steps of the SDE",
            "owt",
            PLANE,
            (_series("ELF-B, SDE, ω 3", _STEPS),),
        ),
        Table(
            "owt-guidance",
            "OpenWebText: ELF-B by ω, 64 steps, ODE and SDE",
            "owt",
            PLANE,
            (
                _series(
                    "ELF-B, ODE, 64 steps", {label: _ODE[label] for label in ("ω 0.5", "ω 1", "ω 2", "ω 3")}
                ),
                _series("ELF-B, SDE, 64 steps", {label: _SDE[label] for label in ("ω 0.5", "ω 3")}),
            ),
        ),
        Table(
            "owt-sizes",
            "OpenWebText: ELF-B, -M and -L, SDE, 64 steps",
            "owt",
            PLANE,
            (
                Group("ELF-B, SDE, 64 steps", (Row("ω 3", Ours("owt-full", "sde-64"), _B),)),
                _series("ELF-M, SDE, 64 steps", {"ω 3": Ours("owt-M", "sde-64")}),
                _series(
                    "ELF-L, SDE, 64 steps",
                    {"ω 3": Ours("owt-L", "sde-64"), "ω 4": Ours("owt-L", "sde-64-w4")},
                ),
            ),
        ),
        Table(
            "distillation",
            "OpenWebText: ELF+PD and its competitors by steps",
            "owt",
            PLANE,
            (
                _series("ELF+PD", _DISTILLED),
                *(_series(method) for method in ("MDLM+SDTT", "Duo+DCD", "FMLM")),
            ),
        ),
        Table(
            "frontier",
            "OpenWebText: ELF-B, all that its sampler sweeps",
            "owt",
            PLANE,
            (
                _series("ELF-B, ODE, 64 steps", _ODE),
                _series("ELF-B, SDE, 64 steps", _SDE),
                _series(
                    "ELF-B, SDE, ω 3",
                    {f"{steps} steps": Ours("owt-frontier", f"steps-steps={steps}") for steps in (8, 16, 32)},
                ),
                *_rest(),
            ),
        ),
        Table("wmt14", "WMT14 German to English: BLEU", "wmt14", BLEU, _pairs("wmt14", "wmt14-de-en")),
        Table("xsum", "XSum: ROUGE", "xsum", ROUGE, _pairs("xsum", "xsum")),
        Table(TOKENS, "tokens trained on, counted both ways", "owt", ()),
        *_ABLATIONS,
    )
}
