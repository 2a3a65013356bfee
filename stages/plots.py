"""Figures of the report: once as SVG in the page's own colours, once as PNG on white.

Colours in the SVG are CSS variables of the page, so that one drawing is right in light and in dark.
"""

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, PercentFormatter

from elf.stages.curves import Curve, Levels

SIZE = (4.4, 2.7)
TITLES = {
    "loss": "Training loss",
    "ce": "Decode branch: cross-entropy, nats",
    "l2": "Denoise branch: squared error",
}
LEVEL_TITLES = {
    "ce": "Decode branch by noise level",
    "l2": "Denoise branch by noise level",
}
FAINTEST = 0.25
"""Opacity of the first third of training, beside that of the last."""


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours by what they mean."""

    ink: str
    muted: str
    line: str
    first: str
    second: str
    ground: str


PAPER = Palette("#1c1f23", "#6b7078", "#dfe2e6", "#2c6e9b", "#c2571a", "#ffffff")
# Colours that no drawing uses otherwise; each becomes var(--name) in the SVG.
PAGE = Palette(*(f"#0102{i:02x}" for i in range(3, 9)))


@dataclass(frozen=True, slots=True)
class Point:
    """A row of the score table as a point: entropy in nats and Gen-PPL with its interval."""

    name: str
    entropy: float
    ppl: float
    interval: tuple[float, float] | None
    control: bool


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure in both forms; `label` says in words what it shows."""

    name: str
    label: str
    svg: str
    png: bytes


def draw_curve(curve: Curve) -> Drawing:
    """One part of the loss over steps."""
    label = f"{TITLES[curve.part]} over training steps"

    def paint(axes: Axes, palette: Palette) -> None:
        if curve.step.size:
            axes.fill_between(curve.step, curve.low, curve.high, color=palette.first, alpha=0.18, lw=0)
            axes.plot(curve.step, curve.mean, color=palette.first, lw=1.4)
        if curve.heldout_step.size:
            dashes = {"color": palette.second, "lw": 1.0}
            axes.plot(curve.heldout_step, curve.heldout_raw, ls=(0, (2, 2)), **dashes)
            axes.plot(curve.heldout_step, curve.heldout, marker="o", ms=2.6, **dashes)
        axes.set_title(TITLES[curve.part])
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))

    return _draw(f"curve-{curve.part}", label, paint)


def draw_levels(levels: Levels) -> Drawing:
    """One branch's loss over the noise level; the later in training, the darker."""
    label = f"{LEVEL_TITLES[levels.part]}: loss over t, in the first, second and last third of training"

    def paint(axes: Axes, palette: Palette) -> None:
        axes.set_yscale("log")
        for place, means in enumerate(levels.thirds):
            alpha = FAINTEST + (1 - FAINTEST) * place / (len(levels.thirds) - 1)
            axes.plot(levels.t, means, color=palette.first, alpha=alpha, lw=1.4, marker="o", ms=2.6)
        axes.plot(levels.t, levels.heldout, color=palette.second, lw=1.0, marker="o", ms=2.6)
        axes.set_title(LEVEL_TITLES[levels.part])
        axes.set_xlabel("t, from noise (0) to clean (1)")
        axes.set_xlim(0, 1)
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())

    return _draw(f"levels-{levels.part}", label, paint)


def draw_frontier(points: Sequence[Point], judge: str, key: str) -> Drawing:
    """Gen-PPL over entropy: settings filled, controls hollow."""

    def paint(axes: Axes, palette: Palette) -> None:
        axes.set_yscale("log")
        for point in points:
            colour = palette.muted if point.control else palette.first
            face = "none" if point.control else colour
            if point.interval is not None:
                axes.plot([point.entropy] * 2, point.interval, color=colour, lw=1.0, alpha=0.6)
            marker = "D" if point.control else "o"
            axes.plot(point.entropy, point.ppl, marker=marker, ms=5, mfc=face, mec=colour, ls="none")
            axes.annotate(
                point.name, (point.entropy, point.ppl), (7, -3), textcoords="offset points", color=colour
            )
        axes.set_title(f"Gen-PPL ({judge}) over entropy")
        axes.set_xlabel("entropy, nats")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.margins(x=0.22, y=0.15)

    return _draw(f"frontier-{key}", f"Gen-PPL by {judge} over entropy, per setting and control", paint)


def draw_settled(name: str, t: Sequence[float], share: Sequence[float] | np.ndarray) -> Drawing:
    """The share of tokens of followed texts that are those of the end, over the time of sampling."""

    def paint(axes: Axes, palette: Palette) -> None:
        axes.plot(t, share, color=palette.first, lw=1.4, marker="o", ms=2.6)
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, 0, " %"))
        _over_time(axes, "Tokens that are settled")

    return _draw(f"settled-{name}", f"Share of settled tokens over t, setting {name}", paint)


def draw_distances(
    name: str,
    t: Sequence[float],
    *,
    x: Sequence[float] | np.ndarray,
    z: Sequence[float] | np.ndarray,
) -> Drawing:
    """How far the estimate x̂ and the state z of followed texts are from where they end, over the time of sampling."""

    def paint(axes: Axes, palette: Palette) -> None:
        axes.plot(t, z, color=palette.second, lw=1.4, marker="o", ms=2.6)
        axes.plot(t, x, color=palette.first, lw=1.4, marker="o", ms=2.6)
        axes.set_ylim(bottom=0)
        _over_time(axes, "Distance to the final state")

    return _draw(f"distance-{name}", f"Distance to the final state over t, setting {name}", paint)


def _over_time(axes: Axes, title: str) -> None:
    axes.set_title(title)
    axes.set_xlabel("t, from noise (0) to clean (1)")
    axes.set_xlim(0, 1)


Painter = Callable[[Axes, Palette], None]


def _draw(name: str, label: str, paint: Painter) -> Drawing:
    return Drawing(name, label, _svg(name, paint), _png(paint))


def _svg(name: str, paint: Painter) -> str:
    """The drawing as an element of an HTML page: no namespace, metadata, style, nor ids that another has."""
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    buffer = io.StringIO()
    with matplotlib.rc_context({**_style(PAGE), "svg.fonttype": "none", "svg.hashsalt": name}):
        _figure(paint, PAGE).savefig(buffer, format="svg", transparent=True, metadata=nothing)
    body = buffer.getvalue().partition("<svg")[2].partition(">")[2]
    body = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", body)
    body = re.sub(r"<style.*?</style>", "", body)
    for colour in fields(Palette):
        body = body.replace(getattr(PAGE, colour.name), f"var(--{colour.name})")
    width, height = (72 * side for side in SIZE)
    return f'<svg viewBox="0 0 {width:g} {height:g}" aria-hidden="true">{body}'


def _png(paint: Painter) -> bytes:
    buffer = io.BytesIO()
    with matplotlib.rc_context(_style(PAPER)):
        _figure(paint, PAPER).savefig(buffer, format="png", dpi=200, metadata={"Software": None})
    return buffer.getvalue()


def _figure(paint: Painter, palette: Palette) -> Figure:
    figure = Figure(figsize=SIZE, layout="constrained", facecolor=palette.ground)
    paint(figure.add_subplot(), palette)
    return figure


def _style(palette: Palette) -> dict[Any, Any]:
    return {
        "font.family": "sans-serif",
        "font.size": 9.5,
        "text.color": palette.ink,
        "axes.labelcolor": palette.muted,
        "axes.labelsize": 9,
        "axes.titlesize": 10.5,
        "axes.titlelocation": "left",
        "axes.titlepad": 8,
        "axes.edgecolor": palette.line,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": palette.line,
        "grid.linewidth": 0.6,
        "xtick.color": palette.line,
        "ytick.color": palette.line,
        "xtick.labelcolor": palette.muted,
        "ytick.labelcolor": palette.muted,
        "xtick.labelsize": 9,
        "ytick.labelsize": 9,
        "lines.solid_capstyle": "round",
    }
