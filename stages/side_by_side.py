"""One page of several runs, made of the parts that the page of one run is made of.

Rows that other models judged, over other windows or in other precisions, or that another version of evaluate scored,
stand in tables of their own; texts with references apart from texts without.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from elf.cache.manifest import short
from elf.cache.store import Artifact
from elf.stages import lineage
from elf.stages.config import Experiment
from elf.stages.curves import Curve, read_curves
from elf.stages.drawing import Drawing
from elf.stages.galleries import FOLDED, Gallery, galleries
from elf.stages.page import Page, render
from elf.stages.plane import Plane, Scored, make_plane
from elf.stages.plots import draw_together
from elf.stages.published import PUBLISHED, Published, PublishedTask
from elf.stages.report import call, describe_floor, flatten, key_figures, read_scored, reading_order
from elf.stages.scoretable import Table, make_tables
from elf.stages.spending import Spending
from elf.stages.training_metrics import METRICS as LOSSES
from elf.stages.training_metrics import read_metrics

TEMPLATE = "side_by_side.html.j2"
UNTOLD = ("name", "report", "compute", "sample")
"""Settings that are no difference between runs, or stand in the tables already."""
SHARED = ""
"""Whose row it is where all runs have the very same."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run by its name, what it was configured to be, and its artifacts by the roles of the report stage's inputs."""

    name: str
    experiment: Experiment
    inputs: Mapping[str, Artifact]


@dataclass(frozen=True, slots=True)
class Group:
    """A score table and what stands under it; ``version`` of evaluate, where the page has several."""

    table: Table
    plane: Plane | None
    version: str


def compose_runs(runs: Sequence[Run], spending: Spending | None = None) -> Page:
    """The page of runs with different names."""
    scored = _scored(runs)
    published = _published(runs)
    groups = _groups(scored, runs, published)
    planes = [group.plane for group in groups if group.plane is not None]
    drawings = _curves(runs)
    names = [run.name for run in runs]
    html = render(
        TEMPLATE,
        title=" · ".join(names),
        names=names,
        heads=_heads(runs),
        differences=list(_differences(runs)),
        groups=groups,
        planes=planes,
        published=published,
        floor=describe_floor({name: row.metrics for rows in scored.values() for name, row in rows.items()}),
        galleries=_galleries(runs),
        folded=max(FOLDED, 2 * len(runs) + 1),
        drawings=drawings,
        spending=spending,
        keys=list(_keys(runs)),
    )
    return Page(html, (*(plane.drawing for plane in planes), *drawings))


def _scored(runs: Sequence[Run]) -> dict[str, dict[str, Scored]]:
    """By the version of evaluate, every set of texts by its name in the tables; one that all runs share stands once."""
    roles = [{role for role in run.inputs if role.startswith("scores/")} for run in runs]
    keys = {
        role: {run.inputs[role].manifest.fingerprint for run in runs} for role in set.intersection(*roles)
    }
    shared = {role.removeprefix("scores/") for role, found in keys.items() if len(found) == 1}
    found: dict[str, dict[str, Scored]] = {}
    for place, run in enumerate(runs):
        for row in read_scored(run.inputs, run.name).values():
            everybodys = row.control and row.name in shared
            if everybodys and place:
                continue
            mine = replace(row, run=SHARED) if everybodys else row
            version = str(run.inputs[f"scores/{row.name}"].manifest.version)
            found.setdefault(version, {})[mine.full_name] = mine
    return dict(sorted(found.items(), reverse=True))


def _alike(scored: Mapping[str, Mapping[str, Scored]]) -> Iterator[tuple[str, dict[str, Scored]]]:
    """Rows that may share a table as far as their scores go: of one version, all of runs of pairs or all of others."""
    everything = [row for rows in scored.values() for row in rows.values()]
    of_pairs = {row.run for row in everything if "bleu" in row.metrics["scores"]}
    for version, rows in scored.items():
        for paired in (False, True):
            kept = {name: row for name, row in rows.items() if (row.run in of_pairs) is paired}
            if kept:
                yield version, kept


def _groups(
    scored: Mapping[str, Mapping[str, Scored]], runs: Sequence[Run], published: Published | None
) -> list[Group]:
    at = {run.name: run.experiment.report.entropy for run in runs}
    groups: list[Group] = []
    for version, rows in _alike(scored):
        made = make_tables(
            {name: row.metrics for name, row in rows.items() if not row.control},
            {name: row.metrics for name, row in rows.items() if row.control},
        )
        for table in made:
            key = str(len(groups) + 1)
            plane = make_plane(table, rows, key=key, entropies=at, published=published)
            groups.append(Group(table, plane, version if len(scored) > 1 else ""))
    return groups


def _published(runs: Sequence[Run]) -> Published | None:
    """What all runs that ask for published numbers ask for; none where they ask for different ones."""
    asked: set[PublishedTask] = {
        task for run in runs if (task := run.experiment.report.published) is not None
    }
    return PUBLISHED[asked.pop()] if len(asked) == 1 else None


def _heads(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Label and figure of each run."""
    told = [
        key_figures(
            run.inputs,
            lineage.trace({call(role): run.inputs[role] for role in sorted(run.inputs, key=reading_order)}),
        )
        for run in runs
    ]
    labels = dict.fromkeys(label for figures in told for label, _ in figures)
    return [(label, [dict(figures).get(label, "–") for figures in told]) for label in labels]


def _differences(runs: Sequence[Run]) -> Iterator[tuple[str, list[str]]]:
    """Settings that are not the same in all runs, each with its values."""
    flat = [dict(flatten(run.experiment.model_dump(mode="json"))) for run in runs]
    for name in dict.fromkeys(name for each in flat for name in each):
        values = [each.get(name, "–") for each in flat]
        if name.partition(".")[0] not in UNTOLD and len(set(values)) > 1:
            yield name, values


def _galleries(runs: Sequence[Run]) -> list[Gallery]:
    """Settings of one name beside each other, real text last; the real text that all runs share once."""
    count = min(run.experiment.report.samples for run in runs)
    made = [(run, gallery) for run in runs for gallery in galleries(run.inputs, count)]
    order = list(dict.fromkeys(gallery.name for _, gallery in made))
    made.sort(key=lambda each: (each[1].control, order.index(each[1].name)))
    real = {run.inputs["controls/real"].manifest.content for run in runs if "controls/real" in run.inputs}
    shown: list[Gallery] = []
    for run, gallery in made:
        if gallery.control and len(real) == 1:
            return [*shown, gallery]
        shown.append(replace(gallery, name=f"{run.name} · {gallery.name}"))
    return shown


def _curves(runs: Sequence[Run]) -> list[Drawing]:
    """A figure for each part of the loss, a line for each training; runs that share one share its line."""
    named: dict[str, list[str]] = {}
    curves: dict[str, list[Curve]] = {}
    for run in runs:
        train = run.inputs["train"]
        losses, key = train.path / LOSSES, str(train.manifest.fingerprint)
        named.setdefault(key, []).append(run.name)
        if losses.exists() and key not in curves:
            curves[key] = read_curves(read_metrics(losses))
    together: dict[str, dict[str, Curve]] = {}
    for key, found in curves.items():
        for curve in found:
            if not curve.empty:
                # Exact nats and bounds are of one kind.
                together.setdefault(curve.part.removesuffix("_bound"), {})[", ".join(named[key])] = curve
    return [draw_together(part) for part in together.values()]


def _keys(runs: Sequence[Run]) -> Iterator[tuple[str, list[str]]]:
    """The keys behind the scores: of each step that is no set of texts or scores of it, by run."""
    roles = dict.fromkeys(role for run in runs for role in sorted(run.inputs, key=reading_order))
    for role in roles:
        if role.partition("/")[0] not in ("scores", "controls"):
            found = [run.inputs.get(role) for run in runs]
            yield (
                call(role),
                [short(each.manifest.fingerprint) if each is not None else "–" for each in found],
            )
