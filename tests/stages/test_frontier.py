"""The plane of entropy and Gen-PPL: what is drawn, what is named, and that words do not lie on words."""

import re
from itertools import combinations, pairwise, product
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from elf.stages.frontier import draw_frontier, far_controls
from elf.stages.labels import Label, place_labels
from elf.stages.published import OWT, PUBLISHED
from elf.stages.series import Point, Series, make_series

USUAL = {"method": "sde", "input_guidance": 1.0, "weights": "ema"}


def point(name: str, entropy: float, ppl: float, **settings: Any) -> Point:
    made = USUAL | settings if settings else None
    near = (ppl * 0.9, ppl * 1.1)
    return Point(name, "", made, entropy, ppl, (entropy - 0.05, entropy + 0.05), near, False)


def sweep() -> list[Series]:
    """Twenty-four settings, close to each other."""
    grid = product((8, 16, 32, 64), (0.5, 1.5), (1.0, 2.0, 3.0))
    return make_series(
        [
            point(f"{n}-{g}-{w}", 5 - w / 7 + n / 500 + g / 50, 200 / w + 99 / n - 5 * g, steps=n, gamma=g, guidance=w)
            for n, g, w in grid
        ]
    )  # fmt: skip


def words(svg: str) -> list[str]:
    return [each.strip() for each in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]


def test_every_series_is_named_and_every_point_labelled():
    drawing = draw_frontier(sweep(), [point("real", 5.2, 30.0)], judge="A judge", key="k")
    told = words(drawing.svg)
    assert [each for each in told if each.startswith("SDE")] == [
        f"SDE · {n} steps · γ {g}" for n in (8, 16, 32, 64) for g in ("0.5", "1.5")
    ]
    assert sum(each.startswith("ω") for each in told) >= 22, "24 labels, or nearly"
    assert "published" not in drawing.svg
    assert "real" in told
    assert "Gen-PPL (A judge) over entropy" in told
    assert drawing.name == "frontier-k"
    assert len(set(re.findall(r"var\(--s\d\)", drawing.svg))) == 8


def test_published_points_are_hollow_and_named_as_published():
    drawing = draw_frontier([], [], judge="GPT-2 large", key="k", published=OWT)
    assert "published, GPT-2 large (up to 300)" in words(drawing.svg)
    assert {each.method for each in OWT.series} < set(words(drawing.svg))
    assert "fill: var(--muted)" not in re.sub(r"<text.*?</text>", "", drawing.svg), "no marker is filled"


def test_controls_far_above_all_settings_are_left_out():
    near, far = point("replaced", 5.4, 400.0), point("unigram", 5.6, 4000.0)
    assert far_controls(sweep(), [near, far]) == [far]
    assert far_controls([], [near, far]) == []


def test_published_numbers_are_for_their_own_judge_only():
    assert OWT.judged_by("gpt2-large", 1024)
    assert not OWT.judged_by("GPT-2 large", 512)
    assert not OWT.judged_by("GPT-2", 1024)
    assert not PUBLISHED["xsum"].judged_by("", 0)


PAPER = """
ELF-B, SDE, ω 3: 67.32 5.14, 33.66 5.16, 24.08 5.15
ELF-B, ODE, 64 steps: 104.29 5.51, 65.30 5.40, 34.65 5.23, 26.62 5.15
ELF-B, SDE, 64 steps: 36.77 5.28, 19.72 5.10
ELF-M, SDE, 64 steps: 21.69 5.18
ELF-L, SDE, 64 steps: 23.31 5.28, 21.37 –
ELF+PD: 136.10 5.26, 68.25 5.24, 34.33 5.16, 23.18 5.07, 22.12 5.06, 21.32 5.04
MDLM+SDTT: 1260.6 5.26, 877.22 5.34, 339.73 5.38, 112.66 5.41, 57.74 5.39, 40.41 5.34
Duo+DCD: 5743.9 6.02, 891.16 5.41, 250.86 5.37, 118.21 5.41, 78.74 5.43, 63.98 5.40
FMLM: 168.30 5.17, 133.29 5.25, 111.31 5.26, 86.50 5.36, 63.63 5.29, 45.09 5.25
"""
"""Gen-PPL and entropy as arXiv 2605.10938 prints them, in the order of its tables."""


def test_published_numbers_are_those_of_the_paper():
    wanted = {}
    for line in PAPER.strip().splitlines():
        method, _, figures = line.partition(": ")
        pairs = [each.split() for each in figures.split(", ")]
        wanted[method] = [(float(ppl), None if entropy == "–" else float(entropy)) for ppl, entropy in pairs]
    assert {each.method: [(p.ppl, p.entropy) for p in each.points] for each in OWT.series} == wanted
    labels = {each.method: [p.label for p in each.points] for each in OWT.series}
    assert labels["ELF-B, SDE, ω 3"] == ["8 steps", "16 steps", "32 steps"]
    assert labels["ELF-L, SDE, 64 steps"] == ["ω 3", "ω 4"]
    assert labels["FMLM"] == ["1 step", *(f"{steps} steps" for steps in (2, 4, 8, 16, 32))]
    assert [row[1][0] for row in PUBLISHED["wmt14"].rows] == [26.4, 25.2, 18.4, 21.3, 24.8, 21.3, 24.9]
    assert [row[1] for row in PUBLISHED["xsum"].rows] == [
        (36.0, 12.2, 27.8),
        (30.5, 10.2, 24.4),
        (33.4, 11.6, 25.8),
        (31.4, 10.1, 25.0),
        (28.4, 8.3, 22.0),
        (19.3, 1.7, 14.1),
    ]


def drawn_labels(labels: list[Label], size: float = 7.5) -> tuple[Axes, dict[str, Any]]:
    figure = Figure(figsize=(5, 3), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([label.x for label in labels], [label.y for label in labels], "o")
    place_labels(axes, labels, size=size)
    figure.draw_without_rendering()
    return axes, {each.get_text(): each.get_window_extent() for each in axes.texts}


def test_labels_do_not_lie_on_each_other():
    labels = [Label(f"label {i}", 5 + (i % 6) / 100, 30 + i // 6, "black") for i in range(24)]
    _, boxes = drawn_labels(labels)
    assert len(boxes) > 8
    assert not [pair for pair in combinations(boxes, 2) if boxes[pair[0]].overlaps(boxes[pair[1]])]


def test_labels_stay_in_the_figure_where_there_is_room():
    labels = [Label(f"a long label of number {i}", i, i * i, "black") for i in range(6)]
    axes, boxes = drawn_labels(labels)
    assert len(boxes) == 6
    frame = axes.bbox.padded(2)
    assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 for box in boxes.values())


@pytest.mark.parametrize("count", [0, 1])
def test_few_labels_are_no_trouble(count: int):
    _, boxes = drawn_labels([Label("one", 1, 1, "black")] * count) if count else (None, {})
    assert len(boxes) == count
    assert list(pairwise(boxes)) == []
