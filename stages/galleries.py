"""Texts as a page shows them: the first of every setting, and those that were sampled while training."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elf.cache.store import Artifact
from elf.stages.json_files import read_json, read_json_lines
from elf.stages.scores import PER_TEXT
from elf.stages.scoretable import describe_settings
from elf.stages.texts import GLIMPSES, SAMPLES, SETTINGS, Text, read_texts

SHOWN = 600
"""Characters of a text shown before the reader asks for the rest."""
FOLDED = 7
"""Settings beyond which only some have their texts open."""
LOOKS, LOOKED_AT, GLANCED = 6, 3, 240
"""Of the texts sampled while training: how many looks, texts of each and characters of a text are shown."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A text as the page shows it: its beginning, the rest, what the judge made of it; of pairs the other sides."""

    label: str
    head: str
    rest: str
    figures: str
    sides: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Gallery:
    """The first texts of one setting or control."""

    name: str
    detail: str
    control: bool
    samples: tuple[Sample, ...]


def galleries(inputs: Mapping[str, Artifact], count: int) -> list[Gallery]:
    """The first `count` texts of every setting, then of the real text, each in the order of seeds and ids."""
    made: list[Gallery] = []
    for role, artifact in inputs.items():
        kind, _, name = role.partition("/")
        if kind == "samples" or role == "controls/real":
            scores = inputs.get(f"scores/{name}")
            made.append(_gallery(name, artifact.path, scores, count, control=kind == "controls"))
    return sorted(made, key=lambda gallery: gallery.control)


def looks(aux: Path) -> dict[int, Sequence[Text]]:
    """The texts sampled while training by the step they were sampled after; a file that is no such is left out."""
    found: dict[int, Sequence[Text]] = {}
    for path in (aux / GLIMPSES).glob("step_*.jsonl"):
        step = path.stem.removeprefix("step_")
        if step.isdecimal():
            found[int(step)] = read_texts(path)
    return dict(sorted(found.items()))


def learned(found: Mapping[int, Sequence[Text]]) -> list[Gallery]:
    """The first texts, each as it was at a few steps, the first and the last among them."""
    steps = list(found)
    if len(steps) > LOOKS:
        steps = [steps[round(place * (len(steps) - 1) / (LOOKS - 1))] for place in range(LOOKS)]
    if not steps:
        return []
    return [
        Gallery(
            name=f"sample {number}",
            detail=(found[steps[0]][number].source or "")[:SHOWN],
            control=False,
            samples=tuple(
                Sample(f"after step {step:,}", text[:GLANCED], text[GLANCED:], "", ())
                for step in steps
                for text in [found[step][number].text]
            ),
        )
        for number in range(min(LOOKED_AT, *(len(found[step]) for step in steps)))
    ]


def _gallery(name: str, folder: Path, scores: Artifact | None, count: int, *, control: bool) -> Gallery:
    settings = folder / SETTINGS
    detail = describe_settings(read_json(settings)) if settings.exists() and not control else ""
    judged = {(line["seed"], line["id"]): line["judged"] for line in per_text(scores)}
    samples = tuple(
        Sample(
            label=f"seed {text.seed} · {text.id}",
            head=text.text[:SHOWN],
            rest=text.text[SHOWN:],
            figures=_figures(judged.get((text.seed, text.id))),
            sides=sides(text),
        )
        for text in read_texts(folder / SAMPLES)[:count]
    )
    return Gallery("real text" if control else name, detail, control, samples)


def sides(text: Text) -> tuple[tuple[str, str], ...]:
    """The beginnings of a pair's source and reference, with what they are; none of plain text."""
    return tuple(
        (name, side[:SHOWN] + "…" * (len(side) > SHOWN))
        for name, side in (("source", text.source), ("reference", text.reference))
        if side is not None
    )


def per_text(scores: Artifact | None) -> list[dict[str, Any]]:
    """What evaluate said of each text."""
    if scores is None:
        return []
    return read_json_lines(scores.path / PER_TEXT)


def _figures(judged: Mapping[str, Any] | None) -> str:
    if judged is None or not judged["counted"]:
        return ""
    return f"PPL {math.exp(judged['nll'] / judged['counted']):,.0f} · entropy {judged['entropy']:.2f}"
