"""Rows of a score table as points on the plane of entropy and Gen-PPL, joined along the setting that was swept."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elf.stages.scores import value_of
from elf.stages.scoretable import describe_settings, full_name

AXES: Mapping[str, str] = {
    "guidance": "ω {:g}",
    "input_guidance": "w {:g}",
    "steps": "{:g} steps",
    "gamma": "γ {:g}",
    "temperature": "temperature {:g}",
    "top_p": "top-p {:g}",
}
"""Settings along which points may be joined, each with how its value is told; the first that will do is taken."""
ALIKE = ("method", "grid", "sde_form", "weights", "precision", "split", "count")
"""Settings that points of one series share."""
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """A set of texts under a judge: entropy in nats and Gen-PPL with their intervals. ``groups`` hold what they are
    made of, an array (n, 4) of NLL, counted tokens, entropy and 1 a seed, zeros where a text has none; ``settings`` are
    those of the sampler, None for texts that no model made. ``run`` is empty on a page of one run."""

    name: str
    run: str
    settings: Mapping[str, Any] | None
    entropy: float
    ppl: float
    entropy_interval: tuple[float, float] | None
    ppl_interval: tuple[float, float] | None
    degenerate: bool
    groups: tuple[Array, ...] = ()

    @property
    def full_name(self) -> str:
        """What it is called in the table."""
        return full_name(self.run, self.name)


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Points in the order of the setting that was swept; ``labels`` tell its values, and those of what changes with it.
    One point alone goes by its name."""

    name: str
    points: tuple[Point, ...]
    labels: tuple[str, ...]


def read_point(
    name: str,
    metrics: Mapping[str, Any],
    per_text: Iterable[Mapping[str, Any]],
    *,
    control: bool,
    run: str = "",
) -> Point | None:
    """The point of a row; None where it has no Gen-PPL or no entropy."""
    scores = metrics["scores"]
    ppl, entropy = value_of(scores, "gen_ppl"), value_of(scores, "entropy")
    if ppl is None or entropy is None:
        return None
    settings = metrics["settings"] if not control else None
    return Point(
        name=name,
        run=run,
        settings=settings if settings is not None and "method" in settings else None,
        entropy=entropy,
        ppl=ppl,
        entropy_interval=_pair(scores["entropy"]["interval"]),
        ppl_interval=_pair(scores["gen_ppl"]["interval"]),
        degenerate=bool(metrics["degenerate"]),
        groups=_groups(per_text),
    )


def make_series(points: Sequence[Point]) -> list[Series]:
    """Points of one run and one kind of sampler, joined along what was swept; what has no partner stands alone."""
    kinds: dict[tuple[Any, ...], list[Point]] = {}
    for point in points:
        kind = [point.settings.get(name) for name in ALIKE] if point.settings is not None else [point.name]
        kinds.setdefault((point.run, *kind), []).append(point)
    return [series for kind in kinds.values() for series in _joined(kind)]


def _joined(points: Sequence[Point]) -> list[Series]:
    varying = [axis for axis in AXES if len({_at(point, axis) for point in points}) > 1]
    for axis in varying:
        if len({_at(point, axis) for point in points}) == len(points):
            return [_series(points, axis)]
    families = {axis: _families(points, axis) for axis in varying}
    axis = max(varying, key=lambda each: sum(map(len, families[each])), default=None)
    if axis is None or not families[axis]:
        return [Series(point.full_name, (point,), (point.full_name,)) for point in points]
    placed = {id(point) for family in families[axis] for point in family}
    rest = [point for point in points if id(point) not in placed]
    return [_series(family, axis) for family in families[axis]] + (_joined(rest) if rest else [])


def _families(points: Sequence[Point], axis: str) -> list[list[Point]]:
    """Two points or more that differ in `axis` only."""

    def others(point: Point) -> list[float]:
        return [_at(point, other) for other in AXES if other != axis]

    found = [list(family) for _, family in groupby(sorted(points, key=others), key=others)]
    return [family for family in found if len({_at(point, axis) for point in family}) == len(family) > 1]


def _series(points: Sequence[Point], axis: str) -> Series:
    ordered = tuple(sorted(points, key=lambda point: _at(point, axis)))
    changing = [name for name in AXES if len({_at(point, name) for point in ordered}) > 1]
    changing.sort(key=lambda name: name != axis)
    first = ordered[0]
    told = describe_settings(first.settings, without={*changing, "weights"})
    raw = " · raw weights" if first.settings is not None and first.settings["weights"] == "raw" else ""
    run = f"{first.run} · " if first.run else ""
    labels = tuple(", ".join(AXES[name].format(_at(point, name)) for name in changing) for point in ordered)
    return Series(f"{run}{told}{raw}", ordered, labels)


def _at(point: Point, axis: str) -> float:
    """0 where the method has no such setting."""
    return float(point.settings.get(axis, 0.0)) if point.settings is not None else 0.0


def _pair(interval: Sequence[float] | None) -> tuple[float, float] | None:
    return (interval[0], interval[1]) if interval is not None else None


def _groups(per_text: Iterable[Mapping[str, Any]]) -> tuple[Array, ...]:
    groups: dict[int, list[tuple[float, float, float, float]]] = {}
    for record in per_text:
        judged = record["judged"]
        if judged is None or record["empty"]:
            row = (0.0, 0.0, 0.0, 0.0)
        else:
            known = judged["entropy"] is not None
            row = (judged["nll"], judged["counted"], judged["entropy"] if known else 0.0, float(known))
        groups.setdefault(record["seed"], []).append(row)
    arrays = [np.array(groups[seed], dtype=np.float64) for seed in sorted(groups)]
    return tuple(group for group in arrays if group[:, 1].sum() > 0)
