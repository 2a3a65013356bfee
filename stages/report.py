"""Stage report: everything a run came to, on one page that needs no network, with its figures as PNG beside it."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from elf.cache.files import write_atomic
from elf.cache.manifest import JSON
from elf.cache.store import Artifact
from elf.pipeline.stage import StageContext
from elf.pipeline.wording import seconds_text
from elf.stages import lineage
from elf.stages.curves import read_curves, read_levels
from elf.stages.experiment import ReportStep
from elf.stages.pace import read_pace
from elf.stages.plane import Scored, make_plane
from elf.stages.plots import draw_curve, draw_levels
from elf.stages.published import PUBLISHED
from elf.stages.reckoning import basis, reckon
from elf.stages.scores import METRICS, PER_TEXT, value_of
from elf.stages.scoretable import describe_settings, make_tables
from elf.stages.texts import GLIMPSES, SAMPLES, SETTINGS, Text, read_texts
from elf.stages.training_metrics import METRICS as LOSSES
from elf.stages.training_metrics import read_metrics
from elf.stages.viewer import make_viewers

PAGE = "report.html"
TEMPLATE = "report.html.j2"
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


def run(section: ReportStep, context: StageContext) -> Mapping[str, JSON]:
    """Write `report.html` and one PNG per figure."""
    inputs = context.inputs
    metrics = {
        role.removeprefix("scores/"): _read_json(artifact.path / METRICS)
        for role, artifact in inputs.items()
        if role.startswith("scores/")
    }
    settings = {name: value for name, value in metrics.items() if f"samples/{name}" in inputs}
    controls = {name: value for name, value in metrics.items() if name not in settings}
    tables = make_tables(settings, controls)
    losses = inputs["train"].path / LOSSES  # imported weights have none
    trained = losses.exists()
    curves = [curve for curve in read_curves(read_metrics(losses)) if not curve.empty] if trained else []
    drawings = [draw_curve(curve) for curve in curves]
    by_level = read_levels(read_metrics(losses)) if trained else []
    by_level = [draw_levels(levels) for levels in by_level if not levels.empty]
    aux = inputs["train"].path / "aux"
    scored = {
        name: Scored(name, value, per_text(inputs[f"scores/{name}"]), name in controls)
        for name, value in metrics.items()
    }
    published = PUBLISHED[section.report.published] if section.report.published is not None else None
    at = {"": section.report.entropy}
    planes = [make_plane(table, scored, entropies=at, published=published) for table in tables]
    planes = [plane for plane in planes if plane is not None]
    viewers = make_viewers({name: inputs[f"samples/{name}"].path for name in settings})
    nodes = lineage.trace({call(role): inputs[role] for role in sorted(inputs, key=reading_order)})
    page = render(
        title=section.report.title or section.experiment,
        experiment=section.experiment,
        note=section.report.note,
        figures=key_figures(inputs, nodes),
        tables=tables,
        reading=reading(settings, controls),
        floor=describe_floor(metrics),
        planes=planes,
        published=published,
        drawings=drawings,
        by_level=by_level,
        pace=read_pace(aux),
        learned=learned(looks(aux)),
        heldout=any(curve.heldout_step.size for curve in curves),
        galleries=galleries(inputs, section.report.samples),
        folded=FOLDED,
        viewers=viewers,
        nodes=nodes,
        arcs=lineage.arcs(nodes),
        gutter=lineage.GUTTER,
        row=lineage.ROW,
        dot=lineage.DOT,
        reckoned=reckon(nodes),
        basis=basis(nodes),
        configs=configurations(nodes),
    )
    write_atomic(context.out / PAGE, page)
    followed = [drawing for viewer in viewers for drawing in viewer.drawings]
    for drawing in (*(plane.drawing for plane in planes), *drawings, *by_level, *followed):
        write_atomic(context.out / f"{drawing.name}.png", drawing.png)
    return {"page": PAGE, "settings": sorted(settings), "controls": sorted(controls)}


def render(**page: Any) -> str:
    """The page from its parts; a part the template does not get is an error."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"seconds": seconds_text, "count": say_count}
    return environment.get_template(TEMPLATE).render(page)


def reading_order(role: str) -> tuple[int, str]:
    """The training run first, then texts, each before its scores."""
    first = ("train", "tokens", "latents", "samples", "scores", "controls")
    return first.index(role.partition("/")[0]), role


def call(role: str) -> str:
    """The instance of the plan that stands behind a role of this stage."""
    kind, _, name = role.partition("/")
    steps = {"samples": "sample", "scores": "evaluate", "controls": "control"}
    plain = {"tokens": "tokenize", "latents": "encode"}
    return f"{steps[kind]}-{name}" if kind in steps else plain.get(role, role)


def key_figures(inputs: Mapping[str, Artifact], nodes: Sequence[lineage.Node]) -> list[tuple[str, str]]:
    """The five numbers one asks for first: label and text."""
    train = inputs["train"].manifest.facts
    latents = inputs["latents"].manifest.facts if "latents" in inputs else None
    seconds = sum(node.seconds for node in nodes if node.seconds is not None)
    return [
        ("parameters", say_count(train["parameters"])),
        ("optimiser steps", say_count(train["steps"])),
        ("training tokens seen", say_count(train["tokens"]) if "tokens" in train else "imported"),
        (
            "rows of latents",
            f"{say_count(latents['rows'])} × {latents['length']} × {latents['width']}" if latents else "none",
        ),
        ("time of all stages", seconds_text(seconds)),
    ]


def reading(settings: Mapping[str, Any], controls: Mapping[str, Any]) -> str:
    """One sentence that sets the best sound setting between its controls; empty where there is none."""
    sound = {
        name: ppl
        for name, metrics in settings.items()
        if (ppl := value_of(metrics["scores"], "gen_ppl")) is not None and not metrics["degenerate"]
    }
    known = {
        name: ppl
        for name, metrics in controls.items()
        if (ppl := value_of(metrics["scores"], "gen_ppl")) is not None
    }
    if not settings or not known:
        return ""
    beside = ", ".join(f"{name} {ppl:,.0f}" for name, ppl in known.items())
    if not sound:
        return f"No setting is free of signs of degeneration; controls under the same judge: {beside}."
    best = min(sound, key=lambda name: sound[name])
    return f"Lowest Gen-PPL of a sound setting: {sound[best]:,.0f} ({best}). Under the same judge: {beside}."


def describe_floor(metrics: Mapping[str, Any]) -> str:
    """`2.31 nats: held-out text − 0.5`, from whichever row says it."""
    floors = {
        (floor["value"], floor["origin"]) for item in metrics.values() if (floor := item["entropy_floor"])
    }
    return "; ".join(f"{value:.2f} nats: {origin}" for value, origin in sorted(floors)) or "none known"


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


def configurations(nodes: Sequence[lineage.Node]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Per stage instance its settings as (dotted name, value)."""
    return [
        (node.name, flat)
        for node in nodes
        if node.manifest and (flat := list(_flatten(node.manifest.config)))
    ]


def say_count(number: Any) -> str:
    """A whole number short enough for a heading: `9,999`, `12.5 k`, `8.1 M`, `45.2 G`."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= limit:
            return f"{number / (1e3 if unit == 'k' else limit):.1f} {unit}"
    return f"{number:,.0f}"


def _gallery(name: str, folder: Path, scores: Artifact | None, count: int, *, control: bool) -> Gallery:
    settings = folder / SETTINGS
    detail = describe_settings(_read_json(settings)) if settings.exists() and not control else ""
    judged = {(line["seed"], line["id"]): line["judged"] for line in per_text(scores)}
    samples = tuple(
        Sample(
            label=f"seed {text.seed} · {text.id}",
            head=text.text[:SHOWN],
            rest=text.text[SHOWN:],
            figures=_figures(judged.get((text.seed, text.id))),
            sides=tuple(
                (name, side[:SHOWN] + "…" * (len(side) > SHOWN))
                for name, side in (("source", text.source), ("reference", text.reference))
                if side is not None
            ),
        )
        for text in read_texts(folder / SAMPLES)[:count]
    )
    return Gallery("real text" if control else name, detail, control, samples)


def per_text(scores: Artifact | None) -> list[dict[str, Any]]:
    """What evaluate said of each text."""
    if scores is None:
        return []
    lines = (scores.path / PER_TEXT).read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line]


def _figures(judged: Mapping[str, Any] | None) -> str:
    if judged is None or not judged["counted"]:
        return ""
    return f"PPL {math.exp(judged['nll'] / judged['counted']):,.0f} · entropy {judged['entropy']:.2f}"


def _flatten(value: Mapping[str, Any], above: str = "") -> Any:
    for name, item in value.items():
        here = f"{above}.{name}" if above else name
        if isinstance(item, Mapping):
            yield from _flatten(item, here)
        else:
            yield here, json.dumps(item, ensure_ascii=False) if isinstance(item, list) else str(item)


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
