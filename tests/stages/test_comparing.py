"""A paired test finds what is there, at the chance it says, and refuses what is no pair."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judging import make_artifact

from elf.cache.manifest import FileRecord, merkle_root
from elf.cache.store import Artifact
from elf.pipeline.errors import Failed, Misconfigured
from elf.stages.comparing import Scored, compare_scores, remarks
from elf.stages.intervals import compare
from elf.stages.texts import Text, write_texts

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
    return Scored(
        name, texts, {"judge": JUDGE, "scores": {"copy_8": {}}, "degenerate": [], **metrics}, records
    )


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


def test_entropy_of_own_ids_is_left_out_between_tokenizers() -> None:
    one, other = (
        replace(scored(name, noise(0).tolist()), tokens=name, tokenizer=name) for name in ("a", "b")
    )
    assert compare_scores(one, one)["entropy_ids"] is not None
    found = compare_scores(one, other)
    assert "entropy_ids" not in found
    assert found["entropy"] is not None
    assert remarks(one, one) == []
    ids, copies = remarks(one, other)
    assert ids.startswith(
        "No entropy_ids: it is of each run's own token ids, and the tokenizers of the two are"
    )
    assert copies.startswith("copy_8: each side's copies are looked for in what its own run was trained on")
    alike = replace(other, tokenizer="a")
    assert compare_scores(one, alike)["entropy_ids"] is not None
    assert remarks(one, alike) == [copies]


def test_copies_of_other_lengths_are_left_out() -> None:
    one = scored("a", noise(0).tolist())
    other = scored("b", noise(0).tolist(), scores={"copy_5": {}})
    assert "copy_8" not in compare_scores(one, other)
    assert remarks(one, other) == ["No copy_8: b has copy_5 in its place."]


def test_a_side_that_must_not_be_believed_is_named() -> None:
    fault = "Gen-PPL above 300"
    sides = [
        scored(name, noise(0).tolist(), degenerate=[fault], samples={"stage": stage})
        for name, stage in (("tiny/ode", "sample"), ("tiny/unigram", "control"))
    ]
    assert remarks(sides[0], sides[1]) == [
        "tiny/ode is degenerate: Gen-PPL above 300.",
        "tiny/unigram (control) is beyond the guard: Gen-PPL above 300.",
    ]


def test_rows_with_nothing_to_compare_are_refused_with_the_reason() -> None:
    full = scored("a", noise(0).tolist())
    texts = [replace(text, text="") for text in full.texts]
    records = [{**each, "empty": True, "judged": None, "repeats_4": [0, 0]} for each in full.per_text]
    void = Scored("b", texts, full.metrics, records)
    with pytest.raises(
        Failed, match=r"a and b have no score that can be compared: every text of b is empty\."
    ):
        compare_scores(full, void)
    both = "every text of b is empty and every text of c is empty"
    with pytest.raises(Failed, match=both):
        compare_scores(void, replace(void, name="c"))
    single = Scored("d", full.texts[:1], full.metrics, full.per_text[:1])
    with pytest.raises(Failed, match="a seed has a single text"):
        compare_scores(single, single)


def test_a_row_knows_its_training_text_and_tokenizer_by_its_store(tmp_path: Path) -> None:
    row = scored("a", noise(0).tolist())

    def stored(key: str, digest: str) -> Scored:
        tokens = make_artifact(tmp_path / "tokenize" / key, "tokenize", key=key)
        files = {"tokenizer/tokenizer.json": FileRecord(1, digest)}
        manifest = replace(tokens.manifest, files=files, content=merkle_root(files))
        (tokens.path / "manifest.json").write_text(manifest.to_json())
        return read(key)

    def read(key: str) -> Scored:
        made = make_artifact(tmp_path / "sample" / key, "sample")
        scores = make_artifact(tmp_path / "evaluate" / key, "evaluate", inputs={"tokens": key})
        write_texts(made.path / "samples.jsonl", row.texts)
        (scores.path / "metrics.json").write_text(json.dumps(row.metrics))
        (scores.path / "per_text.jsonl").write_text("\n".join(map(json.dumps, row.per_text)))
        return Scored.read(key, Artifact(made.path, made.manifest), scores)

    keys = [letter * 64 for letter in "abcd"]
    digest = "xxh3:" + "0" * 32
    one, same, other = (
        stored(key, each) for key, each in zip(keys, (digest, digest, digest[:-1] + "1"), strict=False)
    )
    assert one.tokens != same.tokens
    assert one.tokenizer == same.tokenizer != other.tokenizer
    assert read(keys[3]).tokenizer == keys[3], "it has left the store"
