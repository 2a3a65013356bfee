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
    assert "published, GPT-2 large" in words(drawing.svg)
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


def test_published_numbers_are_those_of_the_paper():
    figures = {each.method: [(p.label, p.ppl, p.entropy) for p in each.points] for each in OWT.series}
    assert figures["ELF-B, SDE, ω 3"] == [
        ("8 steps", 67.32, 5.14),
        ("16 steps", 33.66, 5.16),
        ("32 steps", 24.08, 5.15),
    ]
    assert figures["Duo+DCD"][0] == ("1 step", 5743.9, 6.02)
    assert figures["ELF-L, SDE, 64 steps"][1] == ("ω 4", 21.37, None)
    assert sum(len(each) for each in figures.values()) == 36
    assert PUBLISHED["wmt14"].rows[0] == ("ELF-B, ODE, 64 steps, w 2, ω 1", (26.4,))
    assert all(len(row) == len(each.heads) for each in PUBLISHED.values() for _, row in each.rows)


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
