"""Gen-PPL over entropy: what sampling settings reach, beside texts that no model made."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from elf.stages.drawing import Drawing, Palette, draw, scale_log


@dataclass(frozen=True, slots=True)
class Point:
    """A row of the score table as a point: entropy in nats and Gen-PPL with its interval."""

    name: str
    entropy: float
    ppl: float
    interval: tuple[float, float] | None
    control: bool


def draw_frontier(points: Sequence[Point], judge: str, key: str) -> Drawing:
    """Gen-PPL over entropy: settings filled, controls hollow."""

    def paint(axes: Axes, palette: Palette) -> None:
        scale_log(axes)
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
        axes.margins(x=0.22, y=0.15)

    return draw(f"frontier-{key}", f"Gen-PPL by {judge} over entropy, per setting and control", paint)
