"""How a figure is drawn: once as SVG in the page's own colours, once as PNG on white.

Colours in the SVG are CSS variables of the page, so that one drawing is right in light and in dark.
"""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

SIZE = (4.4, 2.7)
"""Inches."""
MANY = 1e3
"""Times the least that the most of a logarithmic axis is, where its ticks would crowd."""


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours by what they mean."""

    ink: str
    muted: str
    line: str
    first: str
    second: str
    ground: str
    series: tuple[str, ...]
    """Of things that stand side by side; `--s1` and so on in the page."""


PAPER = Palette(
    ink="#1c1f23",
    muted="#6b7078",
    line="#dfe2e6",
    first="#2c6e9b",
    second="#c2571a",
    ground="#ffffff",
    series=("#24648f", "#b04f17", "#2f7d4f", "#8a3b8f", "#94760a", "#14808c", "#b3345f", "#5b5fc7"),
)
# Colours that no drawing uses otherwise; each becomes var(--name) in the SVG.
_NAMES = ("ink", "muted", "line", "first", "second", "ground")
PAGE = Palette(
    **{name: f"#0102{place:02x}" for place, name in enumerate(_NAMES, 3)},
    series=tuple(f"#0102{place:02x}" for place in range(16, 16 + len(PAPER.series))),
)
_VARIABLES = {getattr(PAGE, name): f"var(--{name})" for name in _NAMES} | {
    colour: f"var(--s{place})" for place, colour in enumerate(PAGE.series, 1)
}


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure in both forms; `label` says in words what it shows."""

    name: str
    label: str
    svg: str
    png: bytes


Painter = Callable[[Axes, Palette], None]


def draw(name: str, label: str, paint: Painter, *, size: tuple[float, float] = SIZE) -> Drawing:
    """The figure that `paint` puts on empty axes, `size` in inches; `name` is that of its file."""
    return Drawing(name, label, _svg(name, paint, size), _png(paint, size))


class _Decades(LogLocator):
    """Ticks at 1, 2 and 5 of every decade, over many decades at 1 alone."""

    def tick_values(self, vmin: float, vmax: float) -> Any:
        self.set_params(subs=(1.0,) if vmax > MANY * vmin else (1.0, 2.0, 5.0))
        return super().tick_values(vmin, vmax)


def scale_log(axes: Axes) -> None:
    """A logarithmic y axis that is labelled with plain numbers."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(_Decades())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _svg(name: str, paint: Painter, size: tuple[float, float]) -> str:
    """The drawing as an element of an HTML page: no namespace, metadata, style, nor ids that another has."""
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    buffer = io.StringIO()
    with matplotlib.rc_context({**_style(PAGE), "svg.fonttype": "none", "svg.hashsalt": name}):
        _figure(paint, PAGE, size).savefig(buffer, format="svg", transparent=True, metadata=nothing)
    body = buffer.getvalue().partition("<svg")[2].partition(">")[2]
    body = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", body)
    body = re.sub(r"<style.*?</style>", "", body)
    for colour, variable in _VARIABLES.items():
        body = body.replace(colour, variable)
    width, height = (72 * side for side in size)
    return f'<svg viewBox="0 0 {width:g} {height:g}" aria-hidden="true">{body}'


def _png(paint: Painter, size: tuple[float, float]) -> bytes:
    buffer = io.BytesIO()
    with matplotlib.rc_context(_style(PAPER)):
        _figure(paint, PAPER, size).savefig(buffer, format="png", dpi=200, metadata={"Software": None})
    return buffer.getvalue()


def _figure(paint: Painter, palette: Palette, size: tuple[float, float]) -> Figure:
    figure = Figure(figsize=size, layout="constrained", facecolor=palette.ground)
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
