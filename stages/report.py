"""Stage report: everything a run came to, on one page that needs no network, with its figures as PNG beside it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from elf.cache.manifest import JSON
from elf.cache.store import Artifact
from elf.pipeline.stage import StageContext
from elf.pipeline.wording import seconds_text
from elf.stages import lineage
from elf.stages.curves import read_curves, read_levels
from elf.stages.experiment import ReportStep
from elf.stages.galleries import FOLDED, galleries, learned, looks, per_text
from elf.stages.json_files import read_json
from elf.stages.ledger import LEFT_OUT, ledger_of
from elf.stages.ledger_text import rows_of_ledger, sentences
from elf.stages.pace import read_pace
from elf.stages.page import NAME, Page, render, say_count
from elf.stages.perplexity import perplexity_figures
from elf.stages.plane import Scored, make_plane
from elf.stages.plots import draw_curve, draw_levels
from elf.stages.published import PUBLISHED
from elf.stages.reckoning import basis, reckon
from elf.stages.rounds import read_rounds
from elf.stages.scores import METRICS, value_of
from elf.stages.scoretable import make_tables
from elf.stages.training_metrics import METRICS as LOSSES
from elf.stages.training_metrics import read_metrics
from elf.stages.viewer import make_viewers

TEMPLATE = "report.html.j2"


def run(section: ReportStep, context: StageContext) -> Mapping[str, JSON]:
    """Write `report.html` and one PNG per figure."""
    page = compose(section, context.inputs, context.steps)
    page.write(context.out)
    scored = {role.removeprefix("scores/") for role in context.inputs if role.startswith("scores/")}
    settings = {name for name in scored if f"samples/{name}" in context.inputs}
    return {"page": NAME, "settings": sorted(settings), "controls": sorted(scored - settings)}


def read_scored(inputs: Mapping[str, Artifact], run: str = "") -> dict[str, Scored]:
    """The sets of texts that were scored, by what they are called in tables."""
    found = [
        Scored(
            name=role.removeprefix("scores/"),
            metrics=read_json(artifact.path / METRICS),
            per_text=per_text(artifact),
            control=f"samples/{role.removeprefix('scores/')}" not in inputs,
            run=run,
        )
        for role, artifact in inputs.items()
        if role.startswith("scores/")
    ]
    return {each.full_name: each for each in found}


def compose(
    section: ReportStep, inputs: Mapping[str, Artifact], steps: Mapping[str, str] = MappingProxyType({})
) -> Page:
    """The page of one run from its artifacts, by the roles of the stage's inputs; `steps` has the names of the run's
    steps by their keys."""
    scored = read_scored(inputs)
    metrics = {name: each.metrics for name, each in scored.items()}
    settings = {name: metrics[name] for name, each in scored.items() if not each.control}
    controls = {name: metrics[name] for name, each in scored.items() if each.control}
    tables = make_tables(settings, controls)
    published = PUBLISHED[section.report.published] if section.report.published is not None else None
    at = {"": section.report.entropy}
    planes = [
        make_plane(table, scored, key=str(number), entropies=at, published=published)
        for number, table in enumerate(tables, 1)
    ]
    planes = [plane for plane in planes if plane is not None]
    losses = inputs["train"].path / LOSSES  # imported weights have none
    trained = losses.exists()
    curves = [curve for curve in read_curves(read_metrics(losses)) if not curve.empty] if trained else []
    drawings = [draw_curve(curve) for curve in curves]
    by_level = read_levels(read_metrics(losses)) if trained else []
    by_level = [draw_levels(levels) for levels in by_level if not levels.empty]
    aux = inputs["train"].path / "aux"
    viewers = make_viewers({name: inputs[f"samples/{name}"].path for name in settings})
    nodes = lineage.trace({call(role): inputs[role] for role in sorted(inputs, key=reading_order)}, steps)
    ledger = ledger_of(nodes)
    html = render(
        TEMPLATE,
        title=section.report.title or section.experiment,
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
        rounds=read_rounds(inputs),
        heldout=any(curve.heldout_step.size for curve in curves),
        galleries=galleries(inputs, section.report.samples),
        folded=FOLDED,
        viewers=viewers,
        nodes=nodes,
        arcs=lineage.arcs(nodes),
        gutter=lineage.GUTTER,
        row=lineage.ROW,
        dot=lineage.DOT,
        cost=list(rows_of_ledger(ledger)),
        cost_told=[*sentences(ledger), LEFT_OUT],
        reckoned=reckon(nodes),
        basis=basis(nodes),
        configs=configurations(nodes),
    )
    followed = [drawing for viewer in viewers for drawing in viewer.drawings]
    return Page(html, (*(plane.drawing for plane in planes), *drawings, *by_level, *followed))


def reading_order(role: str) -> tuple[int, str]:
    """The training run first, then texts, each before its scores."""
    first = ("train", "tokens", "latents", "distilled", "samples", "scores", "controls")
    return first.index(role.partition("/")[0]), role


def call(role: str) -> str:
    """The instance of the plan that stands behind a role of this stage."""
    kind, _, name = role.partition("/")
    steps = {"distilled": "distill", "samples": "sample", "scores": "evaluate", "controls": "control"}
    plain = {"tokens": "tokenize", "latents": "encode"}
    return f"{steps[kind]}-{name}" if kind in steps else plain.get(role, role)


def key_figures(inputs: Mapping[str, Artifact], nodes: Sequence[lineage.Node]) -> list[tuple[str, str]]:
    """The numbers one asks for first: label and text. A baseline has a perplexity besides."""
    train = inputs["train"].manifest.facts
    latents = inputs["latents"].manifest.facts if "latents" in inputs else None
    return [
        ("parameters", say_count(train["parameters"])),
        ("optimiser steps", say_count(train["steps"])),
        ("training tokens seen", say_count(train["tokens"]) if "tokens" in train else "imported"),
        (
            "rows of latents",
            f"{say_count(latents['rows'])} × {latents['length']} × {latents['width']}" if latents else "none",
        ),
        ("time of the stages behind this page", seconds_text(lineage.time_of(nodes))),
        *perplexity_figures(inputs["train"].manifest, nodes),
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


def configurations(nodes: Sequence[lineage.Node]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Per stage instance its settings as (dotted name, value)."""
    return [
        (node.name, flat) for node in nodes if node.manifest and (flat := list(flatten(node.manifest.config)))
    ]


def flatten(value: Any, above: str = "") -> Iterator[tuple[str, str]]:
    """Settings by their dotted names, with values as JSON has them; text is told as it is."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from flatten(item, f"{above}.{name}" if above else name)
    else:
        yield above, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
