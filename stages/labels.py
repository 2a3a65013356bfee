"""Words beside points of a figure, placed so that they lie neither on each other nor on points or lines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

LETTER, TALL = 0.7, 1.15
"""Width of a letter and height of a line, in sizes of the type."""
DISTANCES = (5.0, 10.0, 17.0, 26.0)
"""From the point to its label, points; the nearest that is free is taken."""
DIRECTIONS = ((1, 0), (-1, 0), (0.7, 0.7), (0.7, -0.7), (-0.7, 0.7), (-0.7, -0.7), (0, 1), (0, -1))
ON_A_LABEL, OUTSIDE, ON_A_POINT, ON_A_LINE = 100.0, 40.0, 4.0, 1.0
"""What is wrong with a place, added up."""
Box = tuple[float, float, float, float]
"""Left, bottom, right, top; points of the figure."""


@dataclass(frozen=True, slots=True)
class Label:
    """Words for the point (x, y) of the axes."""

    text: str
    x: float
    y: float
    colour: str


def place_labels(axes: Axes, labels: Sequence[Label], *, size: float) -> None:
    """Write the labels; one that would lie on another wherever it is put is left out.

    All that is drawn must be there already; the figure's layout is made here for good.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")  # it would come to the same once more
    scale = 72 / figure.dpi
    points, dots = _marks(axes, scale)
    frame = tuple(scale * each for each in axes.bbox.extents)
    places = scale * axes.transData.transform([(label.x, label.y) for label in labels]) if labels else []
    taken: list[Box] = []
    for label, (x, y) in zip(labels, places, strict=True):
        tried = [
            (_fault(box, taken, frame, points, dots) + 0.05 * distance, box)
            for distance in DISTANCES
            for box in _boxes(x, y, distance, LETTER * size * len(label.text), TALL * size)
        ]
        fault, box = min(tried)
        if fault >= ON_A_LABEL:
            continue
        taken.append(box)
        axes.annotate(
            label.text,
            (label.x, label.y),
            ((box[0] + box[2]) / 2 - x, (box[1] + box[3]) / 2 - y),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=size,
            color=label.colour,
        ).set_in_layout(False)


def _boxes(x: float, y: float, distance: float, width: float, height: float) -> Iterator[Box]:
    for across, up in DIRECTIONS:
        middle = (
            x + across * distance + np.sign(across) * width / 2,
            y + up * distance + np.sign(up) * height / 2,
        )
        left, bottom = middle[0] - width / 2, middle[1] - height / 2
        yield float(left), float(bottom), float(left + width), float(bottom + height)


def _fault(
    box: Box,
    taken: Sequence[Box],
    frame: tuple[float, ...],
    points: NDArray[np.float64],
    dots: NDArray[np.float64],
) -> float:
    left, bottom, right, top = box
    on_labels = sum(
        left < other[2] and other[0] < right and bottom < other[3] and other[1] < top for other in taken
    )
    beyond = left < frame[0] or right > frame[2] or bottom < frame[1] or top > frame[3]
    return (
        ON_A_LABEL * on_labels
        + OUTSIDE * beyond
        + ON_A_POINT * _inside(points, box, 2.0)
        + ON_A_LINE * _inside(dots, box, 0.5)
    )


def _inside(places: NDArray[np.float64], box: Box, margin: float) -> int:
    if not len(places):
        return 0
    low, high = np.array(box[:2]) - margin, np.array(box[2:]) + margin
    return int(((places > low) & (places < high)).all(axis=1).sum())


def _marks(axes: Axes, scale: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Where points lie, and dots along all lines; points of the figure."""
    points: list[NDArray[np.float64]] = [np.zeros((0, 2))]
    dots: list[NDArray[np.float64]] = [np.zeros((0, 2))]
    for line in axes.get_lines():
        if line.get_transform() != axes.transData:
            continue
        places = scale * axes.transData.transform(np.asarray(line.get_xydata(), dtype=np.float64))
        if line.get_marker() not in ("None", None, ""):
            points.append(places)
        steps = np.linspace(0, 1, 25)[:, None, None]
        dots.append((places[:-1] + steps * (places[1:] - places[:-1])).reshape(-1, 2))
    return np.concatenate(points), np.concatenate(dots)
