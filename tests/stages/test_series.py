"""Which points are joined, and what a joined line is called."""

from itertools import product
from typing import Any

from elf.stages.series import Point, make_series

USUAL = {
    "method": "sde", "steps": 16, "grid": "logit_normal", "guidance": 2.0, "gamma": 1.5, "input_guidance": 1.0,
    "sde_form": "released", "weights": "ema", "split": None, "count": 64,
}  # fmt: skip


def point(name: str, run: str = "", **settings: Any) -> Point:
    return Point(
        name=name,
        run=run,
        settings=USUAL | settings,
        entropy=3.0,
        ppl=40.0,
        entropy_interval=None,
        ppl_interval=None,
        degenerate=False,
    )


def told(points: list[Point]) -> dict[str, list[str]]:
    return {series.name: list(series.labels) for series in make_series(points)}


def test_a_grid_becomes_a_line_along_guidance_for_each_of_the_others():
    grid = product((8, 16), (0.5, 1.5), (3.0, 1.0, 2.0))
    points = [point(f"{n}-{g}-{w}", steps=n, gamma=g, guidance=w) for n, g, w in grid]
    labels = ["ω 1", "ω 2", "ω 3"]
    assert told(points) == {
        f"SDE · {steps} steps · γ {gamma:g}": labels for steps in (8, 16) for gamma in (0.5, 1.5)
    }


def test_settings_that_change_together_are_one_line():
    points = [point(f"sde-{n}", steps=n, gamma=g) for n, g in ((32, 1.5), (8, 2.0), (16, 2.0))]
    assert told(points) == {"SDE · ω 2": ["8 steps, γ 2", "16 steps, γ 2", "32 steps, γ 1.5"]}


def test_what_has_no_partner_stands_alone():
    points = [
        point("a"),
        point("b", guidance=3.0),
        point("c", steps=4, gamma=0.0),
        point("ode", method="ode", gamma=0.0),
        point("uniform", grid="uniform"),
    ]
    found = told(points)
    assert found["SDE · 16 steps · γ 1.5"] == ["ω 2", "ω 3"]
    assert {name for name, labels in found.items() if len(labels) == 1} == {"c", "ode", "uniform"}


def test_lines_do_not_run_from_one_run_or_sampler_to_another():
    points = [
        point("w1", "one", guidance=1.0),
        point("w2", "one"),
        point("w1", "two", guidance=1.0),
        point("w2", "two"),
        point("u1", "two", guidance=1.0, grid="uniform", weights="raw"),
        point("u2", "two", grid="uniform", weights="raw"),
    ]
    assert list(told(points)) == [
        "one · SDE · 16 steps · γ 1.5",
        "two · SDE · 16 steps · γ 1.5",
        "two · SDE · 16 steps · uniform grid · γ 1.5 · raw weights",
    ]


def test_every_point_is_in_exactly_one_series():
    steps = ((8, 2.0), (8, 1.0), (16, 2.0), (16, 1.0), (32, 2.0), (64, 0.5))
    points = [point(f"{n}-{g}", steps=n, gamma=g) for n, g in steps]
    placed = [each.name for series in make_series(points) for each in series.points]
    assert sorted(placed) == sorted(each.name for each in points)
    assert make_series([]) == []


def test_the_same_setting_twice_is_not_joined():
    assert told([point("a"), point("b")]) == {"a": ["a"], "b": ["b"]}
