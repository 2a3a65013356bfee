"""What stands under a score table: its frontier, Gen-PPL at one entropy, and published numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elf.stages.drawing import Drawing
from elf.stages.equal_entropy import Crossing, Reference, cross
from elf.stages.frontier import draw_frontier, far_controls
from elf.stages.published import Published
from elf.stages.scoretable import Table, full_name
from elf.stages.series import Point, make_series, read_point

REAL = "real"
"""Name of the control that is real text."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A set of texts with its scores, of the run it is of (empty on a page of one run), and of each text."""

    name: str
    metrics: Mapping[str, Any]
    per_text: Sequence[Mapping[str, Any]]
    control: bool
    run: str = ""

    @property
    def full_name(self) -> str:
        """What it is called in the table."""
        return full_name(self.run, self.name)


@dataclass(frozen=True, slots=True)
class ReadOff:
    """A line of the table of Gen-PPL at one entropy, in words."""

    series: str
    at: str
    ppl: str
    interval: str
    between: str


@dataclass(frozen=True, slots=True)
class Plane:
    """The frontier of one table; ``published`` are the numbers drawn in it, if any are."""

    drawing: Drawing
    read_off: list[ReadOff]
    published: Published | None = None
    origins: list[str] = field(default_factory=list[str])
    """Where the entropies come from at which Gen-PPL is read off."""
    left_out: list[str] = field(default_factory=list[str])
    """Controls too far up to be drawn."""


def make_plane(
    table: Table,
    rows: Mapping[str, Scored],
    *,
    key: str,
    entropies: Mapping[str, float | None],
    published: Published | None = None,
) -> Plane | None:
    """The plane of a table whose rows are known by their names; None where no row has both numbers.

    ``key`` tells its figure from those of a page's other tables. ``entropies`` are those at which the Gen-PPL of each
    run is to be read off, None for that of its real text.
    """
    shown = [rows[row.name] for row in table.rows]
    points = {each.full_name: _point(each) for each in shown}
    settings = [point for each in shown if not each.control and (point := points[each.full_name])]
    controls = [point for each in shown if each.control and (point := points[each.full_name])]
    if table.judge is None or not (settings or controls):
        return None
    judge = table.judge
    beside = (
        published if published is not None and published.judged_by(judge["name"], judge["window"]) else None
    )
    series = make_series(settings)
    swept = [each for each in series if len(each.points) > 1]
    references = {run: found for run, at in entropies.items() if (found := _reference(run, at, controls))}
    crossings = [
        cross(each, reference)
        for each in swept
        if (reference := references.get(each.points[0].run)) is not None
    ]
    used = {each.reference.origin: each.reference for each in crossings}
    far = far_controls(series, controls)
    drawing = draw_frontier(
        series,
        [point for point in controls if point not in far],
        judge=judge["name"],
        key=key,
        references=list(used.values()),
        published=beside,
    )
    left_out = [f"{point.full_name} ({point.ppl:,.0f} at {point.entropy:.2f})" for point in far]
    return Plane(drawing, [_read_off(each) for each in crossings], beside, sorted(used), left_out)


def _point(each: Scored) -> Point | None:
    return read_point(each.name, each.metrics, each.per_text, control=each.control, run=each.run)


def _reference(run: str, entropy: float | None, controls: Sequence[Point]) -> Reference | None:
    """What was asked for, else the real text of the run, or of all runs if they share it."""
    if entropy is not None:
        return Reference(entropy, f"{entropy:.2f} nats as asked for" + (f" by {run}" if run else ""))
    for point in controls:
        if point.name == REAL and point.run in (run, ""):
            whose = f"real text of {point.run}" if point.run else "real text"
            return Reference(point.entropy, f"{point.entropy:.2f} nats of {whose}", point)
    return None


def _read_off(crossing: Crossing) -> ReadOff:
    interval = "–"
    if crossing.interval is not None:
        interval = " to ".join(f"{each:,.1f}" for each in crossing.interval)
    between = crossing.reason
    if crossing.between is not None:
        told = " and ".join(_tell(point, crossing) for point in crossing.between)
        between = f"{told}; {crossing.reason}" if crossing.reason else told
    return ReadOff(
        series=crossing.series.name,
        at=f"{crossing.reference.entropy:.2f}",
        ppl=f"{crossing.ppl:,.1f}" if crossing.ppl is not None else "–",
        interval=interval,
        between=between,
    )


def _tell(point: Point, crossing: Crossing) -> str:
    label = dict(zip(crossing.series.points, crossing.series.labels, strict=True))[point]
    fault = ", degenerate" if point.degenerate else ""
    return f"{label} ({point.ppl:,.1f} at {point.entropy:.2f}{fault})"
