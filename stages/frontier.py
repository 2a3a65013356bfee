"""Gen-PPL over entropy: what sampling settings reach, beside real text, other controls and published numbers.

A series is a line along the setting that was swept, each point with the intervals of both its scores. Published points
are hollow and dashed, and drawn only under the judge and window that they were made with.
"""

from collections.abc import Sequence
from math import ceil, inf
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from elf.stages.drawing import Drawing, Palette, draw, scale_log
from elf.stages.equal_entropy import Reference
from elf.stages.labels import Label, place_labels
from elf.stages.published import Published, PublishedSeries
from elf.stages.scores import WORST_PPL
from elf.stages.series import Point, Series

WIDTH, HEIGHT, LINE = 5.6, 3.6, 0.19
"""Inches: of the figure, and what each line of the legend adds."""
MARKERS, HOLLOW = "os^vPX", "os^v<>*ph"
BRIEF = 42
"""Letters of a name of which two stand side by side in the legend."""
FAR = 3.0
"""Times the largest Gen-PPL of a setting."""
FAINT = 0.35
"""Opacity of points of degenerate texts."""
SMALL = 7.5
"""Size of labels, points."""


def draw_frontier(
    series: Sequence[Series],
    controls: Sequence[Point],
    *,
    judge: str,
    key: str,
    references: Sequence[Reference] = (),
    published: Published | None = None,
) -> Drawing:
    """The plane of one judge, who goes by `judge`; `key` makes the figure's name its own."""
    named = [each.name for each in series if len(each.points) > 1]
    columns = 2 if published is None and len(named) > 3 and max(map(len, named)) <= BRIEF else 1

    def paint(axes: Axes, palette: Palette) -> None:
        scale_log(axes)
        labels: list[Label] = []
        for place, each in enumerate(series):
            colour = palette.series[place % len(palette.series)]
            labels += _paint_series(axes, each, colour, MARKERS[place % len(MARKERS)])
        ours, _ = axes.get_legend_handles_labels()
        labels += _paint_controls(axes, controls, palette)
        theirs = _paint_published(axes, published, palette) if published is not None else []
        for reference in references:
            axes.axvline(reference.entropy, color=palette.muted, lw=0.8, ls=(0, (1, 2)), zorder=0)
        axes.set_title(f"Gen-PPL ({judge}) over entropy")
        axes.set_xlabel("entropy, nats")
        axes.margins(x=0.12, y=0.1)
        if named:
            _explain(axes, ours, "outside lower left", palette.ink, columns=columns)
        if published is not None:
            title = f"published, {published.judge} (up to {WORST_PPL:,.0f})"
            _explain(axes, theirs, "outside lower right", palette.muted, title=title)
        place_labels(axes, labels, size=SMALL)

    lines = ceil(len(named) / columns)
    if published is not None:
        lines = max(lines, 1 + sum(bool(_drawn(each)) for each in published.series))
    label = f"Gen-PPL by {judge} over entropy, per setting and control"
    return draw(f"frontier-{key}", label, paint, size=(WIDTH, HEIGHT + LINE * lines))


def far_controls(series: Sequence[Series], controls: Sequence[Point]) -> list[Point]:
    """Controls so far above every setting that they would press the others together."""
    most = max((point.ppl for each in series for point in each.points), default=inf)
    return [point for point in controls if point.ppl > FAR * most]


def _explain(
    axes: Axes, lines: Sequence[Artist], where: Any, colour: str, *, title: str = "", columns: int = 1
) -> None:
    """A legend below the axes."""
    figure = axes.get_figure()
    assert figure is not None
    legend = figure.legend(
        handles=lines,
        loc=where,
        ncols=columns,
        frameon=False,
        fontsize=SMALL + 0.5,
        labelcolor=colour,
        borderpad=0,
        handlelength=2.4,
        title=title or None,
        title_fontsize=SMALL + 0.5,
        alignment="left",
    )
    legend.get_title().set_color(colour)


def _paint_series(axes: Axes, series: Series, colour: str, marker: str) -> list[Label]:
    many = len(series.points) > 1
    entropies, ppls = [point.entropy for point in series.points], [point.ppl for point in series.points]
    for point in series.points:
        if point.ppl_interval is not None:
            axes.plot([point.entropy] * 2, point.ppl_interval, color=colour, lw=0.9, alpha=0.5)
        if point.entropy_interval is not None:
            axes.plot(point.entropy_interval, [point.ppl] * 2, color=colour, lw=0.9, alpha=0.5)
    sound = [place for place, point in enumerate(series.points) if not point.degenerate]
    style = {"color": colour, "marker": marker, "ms": 4.5}
    axes.plot(entropies, ppls, lw=1.3, markevery=sound, label=series.name if many else None, **style)
    faint = [(point.entropy, point.ppl) for point in series.points if point.degenerate]
    axes.plot([x for x, _ in faint], [y for _, y in faint], ls="none", alpha=FAINT, **style)
    return [Label(*each, colour) for each in zip(series.labels, entropies, ppls, strict=True)]


def _paint_controls(axes: Axes, controls: Sequence[Point], palette: Palette) -> list[Label]:
    colour = palette.muted
    for point in controls:
        if point.ppl_interval is not None:
            axes.plot([point.entropy] * 2, point.ppl_interval, color=colour, lw=0.9, alpha=0.6)
        axes.plot(point.entropy, point.ppl, marker="D", ms=4.5, mfc="none", mec=colour, ls="none")
    return [Label(point.full_name, point.entropy, point.ppl, colour) for point in controls]


def _paint_published(axes: Axes, published: Published, palette: Palette) -> list[Line2D]:
    lines: list[Line2D] = []
    for each in published.series:
        if points := _drawn(each):
            entropies, ppls = zip(*points, strict=True)
            marker = HOLLOW[len(lines) % len(HOLLOW)]
            style = {
                "color": palette.muted,
                "lw": 0.8,
                "ls": (0, (3, 2)),
                "mfc": "none",
                "label": each.method,
            }
            lines += axes.plot(entropies, ppls, marker=marker, ms=4.5, mew=0.8, **style)
    return lines


def _drawn(series: PublishedSeries) -> list[tuple[float, float]]:
    """Entropy and Gen-PPL of points that have both and are no noise; the page's table has all."""
    return [(point.entropy, point.ppl) for point in series.points if point.entropy and point.ppl <= WORST_PPL]
