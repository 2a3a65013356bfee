import json
import math
from pathlib import Path
from typing import Any

import pytest
from judging import END, make_artifact, make_context, make_judge, write_samples
from tokens import make_tokens

from elf.cache.store import Artifact
from elf.pipeline.errors import Failed
from elf.pipeline.stage import StageContext
from elf.stages import evaluate
from elf.stages.config import Evaluate
from elf.stages.copies import CopySearch
from elf.stages.judge import Judge
from elf.stages.selfbleu import self_bleu
from elf.stages.textstats import words_of

WORDS = "the old market lies by a river and new stone bridge garden winter letter".split()  # noqa: SIM905
TRAINING = [
    "the old market lies by a river and the new stone bridge lies by the garden",
    "a letter and a winter garden by the old stone bridge",
    "the river and the market and the bridge and the old old garden lies by a new letter",
] * 4
REAL = ["a new garden lies by the old river and a stone bridge"] * 3 + ["the market lies by a winter river"]
TEXTS = [
    (0, "the old market lies by a river and then some"),
    (0, ""),
    (0, "   "),
    (0, "a"),
    (0, "the " * 80),
    (1, f"first part.{END}second part goes on{END}here"),
    (1, "a letter and a winter garden by the old stone bridge"),
    (1, "a letter and a winter garden by the old stone bridge"),
]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    root = tmp_path_factory.mktemp("inputs")
    judge = make_artifact(root / "fetch", "fetch")
    make_judge(judge.path / "data")
    return {
        "judge": judge,
        "tokens": make_artifact(make_tokens(root / "tokens", TRAINING, words=WORDS), "tokenize"),
        "heldout": make_artifact(make_tokens(root / "heldout", REAL, words=WORDS), "tokenize"),
        "samples": make_artifact(write_samples(root / "samples", TEXTS), "sample"),
    }


def section(**changes: Any) -> Evaluate:
    judge = {"asset": {"uri": "path:judge"}, "name": "Tiny", "window": 64}
    return Evaluate.model_validate({"judge": judge, "copy_ngram": 4} | changes)


def result(context: StageContext) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    lines = (context.out / "per_text.jsonl").read_text().splitlines()
    return json.loads((context.out / "metrics.json").read_text()), [json.loads(line) for line in lines]


def run(
    out: Path, inputs: dict[str, Artifact], wanted: Evaluate | None = None, batch: int | None = None
) -> dict[str, Any]:
    context = make_context(out, inputs, batch=batch)
    evaluate.run(wanted or section(), context)
    return result(context)[0]


def with_texts(
    inputs: dict[str, Artifact], folder: Path, texts: list[Any], **more: Any
) -> dict[str, Artifact]:
    return inputs | {"samples": make_artifact(write_samples(folder, texts, **more), "sample")}


def seed_texts(seed: int) -> list[list[str]]:
    return [words_of(text) for own, text in TEXTS if own == seed]


def test_scores_counts_and_guards(tmp_path: Path, inputs: dict[str, Artifact]):
    context = make_context(tmp_path / "out", inputs)
    facts = evaluate.run(section(), context)
    metrics, rows = result(context)
    assert metrics["counts"] == {
        "texts": 8, "seeds": 2, "empty": 2, "duplicates": 1, "words": 10 + 1 + 80 + 9 + 11 * 2,
        "judge_tokens": 44 + 1 + 64 + 36 + 52 * 2, "scored_tokens": 43 + 0 + 63 + 34 + 51 * 2,
        "one_token": 1, "over_window": 1, "end_marks": 2,
    }  # fmt: skip
    scores = metrics["scores"]
    seeds = [[r for r in rows if r["seed"] == seed and not r["empty"]] for seed in (0, 1)]
    per_seed = [
        math.exp(sum(r["judged"]["nll"] for r in group) / sum(r["judged"]["counted"] for r in group))
        for group in seeds
    ]
    assert scores["gen_ppl"]["value"] == pytest.approx(sum(per_seed) / 2, rel=1e-12)
    assert scores["gen_ppl"]["se_seed"] == pytest.approx(abs(per_seed[0] - per_seed[1]) / 2, rel=1e-9)
    assert scores["gen_ppl"]["tokens"] == metrics["counts"]["scored_tokens"]
    assert scores["entropy"]["n"] == 6
    assert scores["empty"]["value"] == pytest.approx(0.2)
    assert scores["duplicates"]["value"] == pytest.approx((0 + 1 / 3) / 2)
    assert facts["gen_ppl"] == scores["gen_ppl"]["value"]
    alone = [self_bleu(seed_texts(seed)) for seed in (0, 1)]
    assert scores["self_bleu"]["value"] == pytest.approx(sum(each.value for each in alone if each) / 2)
    assert scores["self_bleu"]["references"] == 2
    assert scores["self_bleu"]["se_item"] is None
    assert metrics["judge"]["name"] == "Tiny"
    assert any("fewer than 200" in line for line in metrics["warnings"])
    assert any("1 of 8 texts word for word" in line for line in metrics["warnings"])
    assert any("2 of 8 texts empty" in line for line in metrics["warnings"])
    made = sorted(path.name for path in context.out.iterdir())
    assert made == ["aux", "metrics.json", "per_text.jsonl"]


def test_copies_are_found_in_the_training_text_across_rows(tmp_path: Path, inputs: dict[str, Artifact]):
    run(tmp_path / "out", inputs)
    rows = [json.loads(line) for line in (tmp_path / "out" / "per_text.jsonl").read_text().splitlines()]
    assert rows[0]["copy_4"] == [5, 7]
    assert rows[6]["copy_4"] == [8, 8]
    assert rows[4]["copy_4"] == [0, 77]
    assert rows[1]["copy_4"] == [0, 0]


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_scores_do_not_depend_on_batch_or_order(tmp_path: Path, inputs: dict[str, Artifact], batch: int):
    texts = [text for _, text in TEXTS]
    straight = run(tmp_path / "a", with_texts(inputs, tmp_path / "s", texts))
    turned = run(tmp_path / "b", with_texts(inputs, tmp_path / "r", texts[::-1]), batch=batch)
    assert straight["counts"] == turned["counts"]
    for name, score in straight["scores"].items():
        if score["value"] is None:
            assert turned["scores"][name] == score
        else:
            assert turned["scores"][name]["value"] == pytest.approx(score["value"], rel=1e-5), name


def test_the_payload_is_the_same_bytes_again(tmp_path: Path, inputs: dict[str, Artifact]):
    run(tmp_path / "a", inputs)
    run(tmp_path / "b", inputs)
    for name in ("metrics.json", "per_text.jsonl"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert str(tmp_path) not in (tmp_path / "a" / "metrics.json").read_text()


class Killed(BaseException):
    """Stands for a signal: nothing between here and the test handles it."""


@pytest.mark.parametrize("calls_before", [0, 2, 5])
def test_a_killed_run_goes_on(
    tmp_path: Path, inputs: dict[str, Artifact], monkeypatch: pytest.MonkeyPatch, calls_before: int
):
    run(tmp_path / "undisturbed", inputs, batch=1)
    score, calls = Judge.score, []

    def scored(judge: Judge, batch: Any) -> Any:
        if len(calls) == calls_before:
            raise Killed
        calls.append(batch)
        return score(judge, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Judge, "score", scored)
        with pytest.raises(Killed):
            run(tmp_path / "out", inputs, batch=1)
    assert not (tmp_path / "out" / "metrics.json").exists()
    again: list[Any] = []
    monkeypatch.setattr(Judge, "score", lambda judge, batch: again.append(batch) or score(judge, batch))
    run(tmp_path / "out", inputs, batch=1)
    assert len(calls) + len(again) == 6
    for name in ("metrics.json", "per_text.jsonl"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()
    assert not (tmp_path / "out" / "parts").exists()


def test_a_killed_search_for_copies_goes_on(
    tmp_path: Path, inputs: dict[str, Artifact], monkeypatch: pytest.MonkeyPatch
):
    run(tmp_path / "undisturbed", inputs)
    monkeypatch.setattr(evaluate, "COPY_ROWS", 3)
    look, calls = CopySearch.look_through, []

    def looked(search: CopySearch, documents: Any) -> None:
        calls.append(documents)
        if len(calls) == 3:
            raise Killed
        look(search, documents)

    monkeypatch.setattr(CopySearch, "look_through", looked)
    with pytest.raises(Killed):
        run(tmp_path / "out", inputs)
    run(tmp_path / "out", inputs)
    assert len(calls) == 3 + 2
    for name in ("metrics.json", "per_text.jsonl"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()


def test_without_a_judge_text_statistics_remain(tmp_path: Path, inputs: dict[str, Artifact]):
    more = with_texts(inputs, tmp_path / "s", ["the old market", "a letter and a letter"], ids=[5, 6, 6])
    del more["judge"]
    metrics = run(tmp_path / "out", more, section(judge=None))
    assert metrics["judge"] is None
    assert metrics["scores"]["gen_ppl"] == {"value": None, "reason": "no judge was named"}
    assert metrics["scores"]["entropy"] == {"value": None, "reason": "no judge was named"}
    assert metrics["scores"]["distinct_1"]["value"] == pytest.approx(6 / 8)
    expected = -(1 / 3 * math.log(1 / 3) + 2 / 3 * math.log(2 / 3))
    assert metrics["scores"]["entropy_ids"]["value"] == pytest.approx(expected)


def test_copies_of_one_sentence_are_flagged(tmp_path: Path, inputs: dict[str, Artifact]):
    good = "the old market lies by a river"
    metrics = run(tmp_path / "out", with_texts(inputs, tmp_path / "s", [good] * 64))
    assert metrics["scores"]["duplicates"]["value"] == pytest.approx(63 / 64)
    assert any("63 of 64 texts word for word" in line for line in metrics["warnings"])


def test_one_word_is_degenerate_and_real_text_is_not(tmp_path: Path, inputs: dict[str, Artifact]):
    floor = {"entropy_floor": 2.0}
    word = run(tmp_path / "w", with_texts(inputs, tmp_path / "sw", ["aaaa " * 30] * 4), section(**floor))
    assert any(fault.startswith("entropy") and "2.00" in fault for fault in word["degenerate"])
    assert word["scores"]["repeats_4"]["value"] == pytest.approx(26 / 27)
    real = run(tmp_path / "r", with_texts(inputs, tmp_path / "sr", REAL))
    assert not any(fault.startswith("entropy") for fault in real["degenerate"])
    assert real["entropy_floor"]["origin"] == "held-out text − 0.5"
    assert real["scores"]["entropy"]["value"] == pytest.approx(real["entropy_floor"]["value"] + 0.5, abs=0.1)


def test_all_empty_is_no_number(tmp_path: Path, inputs: dict[str, Artifact]):
    metrics = run(tmp_path / "out", with_texts(inputs, tmp_path / "s", ["", "  "]))
    assert metrics["scores"]["gen_ppl"]["value"] is None
    assert "every text is empty" in metrics["degenerate"]
    assert metrics["scores"]["empty"]["value"] == 1.0


def test_settings_come_along(tmp_path: Path, inputs: dict[str, Artifact]):
    samples = with_texts(inputs, tmp_path / "s", ["a letter"])
    (samples["samples"].path / "settings.json").write_text('{"weights": "ema", "digest": "xxh3:00"}')
    assert run(tmp_path / "out", samples)["settings"] == {"weights": "ema", "digest": "xxh3:00"}


def test_an_overflowing_judge_is_refused(
    tmp_path: Path, inputs: dict[str, Artifact], monkeypatch: pytest.MonkeyPatch
):
    nlls = Judge.token_nlls
    monkeypatch.setattr(
        Judge, "token_nlls", lambda self, batch: [values * math.nan for values in nlls(self, batch)]
    )
    with pytest.raises(Failed, match=r"text .* of seed .* an NLL of nan"):
        run(tmp_path / "out", inputs)


def test_a_control_is_not_called_degenerate_as_it_is_scored(
    tmp_path: Path, inputs: dict[str, Artifact], capsys: pytest.CaptureFixture[str]
):
    for stage, words in (("sample", "degenerate: every"), ("control", "beyond the guard: every")):
        texts = make_artifact(write_samples(tmp_path / stage, ["", ""]), stage)
        metrics = run(tmp_path / f"{stage} scored", {**inputs, "samples": texts})
        assert metrics["degenerate"] == ["every text is empty"]
        assert f"{words} text is empty\n" in capsys.readouterr().err
