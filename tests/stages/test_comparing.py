"""A paired test finds what is there, at the chance it says, and refuses what is no pair."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from elf.pipeline.errors import Misconfigured
from elf.stages.comparing import Scored, compare_scores
from elf.stages.intervals import compare
from elf.stages.texts import Text

JUDGE = {"content": "xxh3:1", "window": 64, "precision": "float32", "name": "toy"}


def scored(name: str, nll: list[float], *, reference: str | None = None, **metrics: Any) -> Scored:
    texts = [
        Text(id=i % 10, seed=i // 10, text=f"word {i % 3} {i % 4}", reference=reference, source=reference)
        for i in range(len(nll))
    ]
    records = [
        {
            "id": text.id, "seed": text.seed, "empty": False, "repeats_4": [0, 2], "copy_8": None, "entropy_ids": 1.5,
            "judged": {"nll": each, "counted": 10, "entropy": 2.0 + each / 100},
        }
        for text, each in zip(texts, nll, strict=True)
    ]  # fmt: skip
    return Scored(name, texts, {"judge": JUDGE, "scores": {"copy_8": {}}, **metrics}, records)


def noise(seed: int, count: int = 20) -> np.ndarray:
    return np.random.default_rng(seed).normal(40, 5, count)


def test_a_small_shift_of_every_item_is_sure_though_items_differ_more() -> None:
    base = noise(0)
    found = compare_scores(scored("a", base.tolist()), scored("b", (base - 0.5).tolist()))
    ppl = found["gen_ppl"]
    assert ppl is not None
    assert ppl.first == pytest.approx(np.mean([np.exp(each.sum() / 100) for each in (base[:10], base[10:])]))
    assert ppl.value == pytest.approx(ppl.second - ppl.first)
    assert ppl.interval[0] <= ppl.value <= ppl.interval[1] < 0
    assert ppl.p < 0.002
    assert ppl.n == 20
    repeats = found["repeats_4"]
    assert repeats is not None
    assert (repeats.value, repeats.interval, repeats.p) == (0.0, (0.0, 0.0), 1.0)
    assert found["copy_8"] is None
    assert "bleu" not in found


def test_nothing_is_found_where_nothing_is_as_often_as_the_chance_says() -> None:
    """Of 200 comparisons of draws from one distribution, about one in twenty falls below 0.05."""

    def value(sums: np.ndarray) -> float:
        return float(sums[0] / sums[1])

    hits = 0
    for number in range(200):
        sides = [np.stack([noise(2 * number + side, 40), np.ones(40)], axis=1) for side in (0, 1)]
        found = compare([sides[0]], [sides[1]], value)
        assert found is not None
        hits += found.p < 0.05
    assert 2 <= hits <= 25


def test_texts_with_references_are_compared_by_them_too() -> None:
    first = scored("a", noise(0).tolist(), reference="word 1 2")
    better = [replace(text, text="word 1 2") for text in first.texts]
    found = compare_scores(first, Scored("b", better, first.metrics, first.per_text))
    for name in ("bleu", "rouge_l"):
        each = found[name]
        assert each is not None
        assert each.second == pytest.approx(100)
        assert each.p < 0.002


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (scored("b", noise(1, 30).tolist()), "a has 20 texts and b 30"),
        (scored("b", noise(1).tolist(), reference="x y"), "are not of one item"),
        (
            scored("b", noise(1).tolist(), judge={**JUDGE, "window": 128}),
            r"judged differently \(window: 64 and 128",
        ),
        (scored("b", noise(1).tolist(), judge=None), "judged differently"),
    ],
)
def test_what_is_no_pair_is_refused(other: Scored, message: str) -> None:
    with pytest.raises(Misconfigured, match=message):
        compare_scores(scored("a", noise(0).tolist()), other)
