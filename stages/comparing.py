"""Two sets of texts of the same items under the same scorer: which is better, and how sure that is.

Items join by (seed, id). Texts from noise share no source, but start from the same noise where two settings or two
runs have the same seeds; texts of pairs share source and reference.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elf.cache.errors import Damaged
from elf.cache.manifest import MANIFEST, Manifest
from elf.cache.store import Artifact
from elf.pipeline.errors import Failed, Misconfigured
from elf.stages.guards import is_control, say_fault
from elf.stages.intervals import Difference, compare
from elf.stages.json_files import read_json, read_json_lines
from elf.stages.overlap import overlap_statistics
from elf.stages.scores import METRICS, PER_TEXT
from elf.stages.texts import SAMPLES, Text, read_texts

TOKENIZER = "tokenizer/tokenizer.json"
OWN_IDS = "entropy_ids"
JUDGED = ("content", "window", "precision")
"""What must be the same of two judges for their numbers to be compared."""

Value = Callable[[NDArray[np.float64]], float]
Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Scored:
    """One row of a score table: its texts, and what evaluate said of all and of each, in the same order; ``tokens`` is
    the key of the training text that was searched for copies, ``tokenizer`` what tells its tokenizer from others."""

    name: str
    texts: Sequence[Text]
    metrics: Record
    per_text: Sequence[Record]
    tokens: str = ""
    tokenizer: str = ""

    @classmethod
    def read(cls, name: str, samples: Artifact, scores: Artifact) -> "Scored":
        """Raises Failed where the two artifacts are not of the same texts."""
        texts = read_texts(samples.path / SAMPLES)
        metrics = read_json(scores.path / METRICS)
        records = read_json_lines(scores.path / PER_TEXT)
        if [(each["seed"], each["id"]) for each in records] != [(text.seed, text.id) for text in texts]:
            raise Failed(
                f"The scores in {scores.path} are not of the texts in {samples.path}. Score them again: run evaluate "
                "with --force."
            )
        tokens = str(scores.manifest.inputs.get("tokens", ""))
        return cls(name, texts, metrics, records, tokens, _tokenizer(scores.path.parent.parent, tokens))

    @property
    def paired(self) -> bool:
        return all(text.reference is not None for text in self.texts)

    @property
    def copies(self) -> str:
        """What its rate of copies is called, which tells the length of the n-grams."""
        return next(name for name in self.metrics["scores"] if name.startswith("copy_"))


def compare_scores(first: Scored, second: Scored) -> dict[str, Difference | None]:
    """The difference second − first of every score that means the same on both sides; None where a side has none.

    Raises Misconfigured where the two are not of the same items or were judged differently, Failed where they have no
    score that can be compared.
    """
    _check(first, second)
    made: dict[str, Difference | None] = {}
    apart = {name for name, _ in _left_out(first, second)}
    for name, (numbers, value) in _ratios(first).items():
        if name not in apart:
            made[name] = compare(_grouped(first, numbers), _grouped(second, numbers), value)
    if first.paired:
        sides = [overlap_statistics(_by_seed(side.texts)) for side in (first, second)]
        for name, mine in sides[0].items():
            made[name] = compare(mine.groups, sides[1][name].groups, mine.value)
    if not any(made.values()):
        raise Failed(
            f"{first.name} and {second.name} have no score that can be compared: {_lacking(first, second)}. Read "
            "them with `elf sample`, and compare rows of two texts or more, some of them with words."
        )
    return made


def remarks(first: Scored, second: Scored) -> list[str]:
    """What must be said beside the differences: which scores are left out, and which side not to believe."""
    told = [f"No {name}: {why}." for name, why in _left_out(first, second)]
    if first.tokens != second.tokens and first.copies == second.copies:
        told.append(
            f"{first.copies}: each side's copies are looked for in what its own run was trained on, and these two "
            "training sets are not the same."
        )
    for side in (first, second):
        control = is_control(side.metrics)
        told += [f"{say_fault(side.name, fault, control=control)}." for fault in side.metrics["degenerate"]]
    return told


def _left_out(first: Scored, second: Scored) -> Iterator[tuple[str, str]]:
    """Scores that do not mean the same on both sides, each with the reason."""
    if first.tokenizer != second.tokenizer:
        yield (
            OWN_IDS,
            "it is of each run's own token ids, and the tokenizers of the two are not known to be the same",
        )
    if first.copies != second.copies:
        yield first.copies, f"{second.name} has {second.copies} in its place"


def _lacking(first: Scored, second: Scored) -> str:
    """Why two sides have nothing in common."""
    empty = dict.fromkeys(side.name for side in (first, second) if all(text.empty for text in side.texts))
    if empty:
        return " and ".join(f"every text of {name} is empty" for name in empty)
    if any(len(group) < 2 for group in _by_seed(first.texts)):
        return "a seed has a single text, and draws of texts need two"
    return "no score has something to count on both sides"


def _tokenizer(store: Path, tokens: str) -> str:
    """Digest of the tokenizer of that training text; where it has left the store, the key of the text."""
    try:
        manifest = Manifest.from_json((store / "tokenize" / tokens / MANIFEST).read_bytes())
    except (OSError, Damaged):
        return tokens
    return manifest.files[TOKENIZER].digest if TOKENIZER in manifest.files else tokens


def _check(first: Scored, second: Scored) -> None:
    if len(first.texts) != len(second.texts):
        raise Misconfigured(
            f"{first.name} has {len(first.texts):,} texts and {second.name} {len(second.texts):,}; a paired test needs "
            "the same items on both sides: sample both with the same count and seeds."
        )
    for mine, theirs in zip(first.texts, second.texts, strict=True):
        keys = [(text.seed, text.id, text.source, text.reference) for text in (mine, theirs)]
        if keys[0] != keys[1]:
            raise Misconfigured(
                f"Text {mine.id} of seed {mine.seed} in {first.name} and text {theirs.id} of seed {theirs.seed} in "
                f"{second.name} are not of one item (seed, id, source and reference must be the same): a paired test "
                "needs the same items on both sides."
            )
    judges = [side.metrics["judge"] or {} for side in (first, second)]
    for part in JUDGED:
        if judges[0].get(part) != judges[1].get(part):
            raise Misconfigured(
                f"{first.name} and {second.name} were judged differently ({part}: {judges[0].get(part)} and "
                f"{judges[1].get(part)}): score both with one judge."
            )


def _ratios(side: Scored) -> dict[str, tuple[Callable[[Record], tuple[float, float]], Value]]:
    """Numerator and denominator of each ratio of a text, (0, 0) where there is none, and the score of their sums."""

    def judged(record: Record) -> tuple[float, float]:
        found = record["judged"]
        return (found["nll"], found["counted"]) if found is not None and not record["empty"] else (0.0, 0.0)

    def entropy(record: Record) -> tuple[float, float]:
        found = None if record["judged"] is None else record["judged"]["entropy"]
        return (0.0, 0.0) if found is None or record["empty"] else (float(found), 1.0)

    def own(record: Record) -> tuple[float, float]:
        found = record[OWN_IDS]
        return (0.0, 0.0) if found is None or record["empty"] else (float(found), 1.0)

    def counted(name: str) -> Callable[[Record], tuple[float, float]]:
        return lambda record: (0.0, 0.0) if record[name] is None else tuple(record[name])

    def ratio(sums: NDArray[np.float64]) -> float:
        return float(sums[0] / sums[1])

    return {
        "gen_ppl": (judged, lambda sums: float(np.exp(ratio(sums)))),
        "entropy": (entropy, ratio),
        OWN_IDS: (own, ratio),
        "repeats_4": (counted("repeats_4"), ratio),
        side.copies: (counted(side.copies), ratio),
    }


def _grouped(side: Scored, numbers: Callable[[Record], tuple[float, float]]) -> list[NDArray[np.float64]]:
    """(texts, 2) of each seed."""
    groups = groupby(side.per_text, key=lambda record: record["seed"])
    return [np.array([numbers(record) for record in group], dtype=np.float64) for _, group in groups]


def _by_seed(texts: Sequence[Text]) -> list[list[Text]]:
    return [list(group) for _, group in groupby(texts, key=lambda text: text.seed)]
