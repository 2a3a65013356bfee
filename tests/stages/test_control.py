import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from judging import make_artifact, make_context
from tokens import END, make_tokens

from elf.pipeline.errors import Failed
from elf.stages import control
from elf.stages.config import Control
from elf.stages.control import Unigram, choose_rows, others, replace_share
from elf.stages.rows import TokenRows
from elf.stages.texts import Text, read_texts

WORDS = "the old market lies by a river".split()  # noqa: SIM905
TRAIN = ["the old market lies by a river the the the"] * 30
HELD = [
    "by a river lies the market",
    "old old market by the river lies",
    "a market by the old river lies there",
] * 5


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tokens")
    make_tokens(root / "train", TRAIN, words=WORDS, length=8)
    make_tokens(root / "held", HELD, words=[*WORDS, "there"][:7], length=8)
    return root


def run(tokens: Path, out: Path, *, held: bool = True, **settings) -> tuple[Text, ...]:  # type: ignore[no-untyped-def]
    inputs = {"tokens": make_artifact(tokens / "train", "tokenize")}
    if held:
        inputs["heldout"] = make_artifact(tokens / "held", "tokenize")
    control.run(Control(**settings), make_context(out, inputs))
    return read_texts(out / "samples.jsonl")


def test_real_text_is_held_out_rows_up_to_their_end_mark(tokens: Path, tmp_path: Path) -> None:
    texts = run(tokens, tmp_path, kind="real", count=6)
    rows = TokenRows.open(tokens / "held")
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert settings["split"] == "validation"
    assert len(set(settings["rows"])) == 6
    for text, row in zip(texts, settings["rows"], strict=True):
        whole = rows.ids(np.array([row]))[0].tolist()
        assert list(text.ids or ()) == (whole[: whole.index(END)] if END in whole else whole)
    assert [text.id for text in texts] == list(range(6))
    run(tokens, tmp_path / "train", held=False, kind="real", count=6)
    assert json.loads((tmp_path / "train" / "settings.json").read_text())["split"] == "train"


def test_the_three_kinds_have_the_same_lengths_and_no_end_marks(tokens: Path, tmp_path: Path) -> None:
    kinds = {
        kind: run(tokens, tmp_path / kind, kind=kind, count=12, seed=3)
        for kind in ("real", "replaced", "unigram")
    }
    lengths = {kind: [len(text.ids or ()) for text in texts] for kind, texts in kinds.items()}
    assert lengths["real"] == lengths["replaced"] == lengths["unigram"]
    assert all(END not in (text.ids or ()) for texts in kinds.values() for text in texts)
    assert kinds["real"] != kinds["replaced"]


def test_draws_are_a_function_of_seed_and_row(tokens: Path, tmp_path: Path) -> None:
    first = run(tokens, tmp_path / "a", kind="unigram", count=12, seed=3)
    assert first == run(tokens, tmp_path / "b", kind="unigram", count=12, seed=3)
    assert (tmp_path / "a" / "samples.jsonl").read_bytes() == (tmp_path / "b" / "samples.jsonl").read_bytes()
    other = run(tokens, tmp_path / "c", kind="unigram", count=12, seed=4)
    assert [text.ids for text in other] != [text.ids for text in first]
    assert len({text.ids for text in first}) > 6, "rows do not share their draws"


def test_the_unigram_is_that_of_the_training_rows(tokens: Path) -> None:
    unigram = Unigram(TokenRows.open(tokens / "train"))
    drawn = Counter(unigram.draw(0, 0, 50_000).tolist())
    the = 3 + WORDS.index("the")
    assert set(drawn) == set(range(3, 10))
    assert drawn[the] / 50_000 == pytest.approx(0.4, abs=0.01)
    assert drawn[the + 1] / 50_000 == pytest.approx(0.1, abs=0.01)


def test_the_share_of_replaced_tokens(tokens: Path) -> None:
    unigram = Unigram(TokenRows.open(tokens / "train"))
    ids = np.full(20_000, 10, dtype=np.int32)
    changed = replace_share(ids, 0.2, unigram, seed=0, row=5) != ids
    assert changed.mean() == pytest.approx(0.2, abs=0.01)
    assert not (replace_share(ids, 0.0, unigram, seed=0, row=5) != ids).any()
    assert (replace_share(ids, 1.0, unigram, seed=0, row=5) != ids).all()


@pytest.mark.parametrize("seed", [0, 1, -1])
def test_rows_are_chosen_without_repeats(seed: int) -> None:
    chosen = choose_rows(1000, 50, seed)
    assert len(set(chosen.tolist())) == 50
    assert chosen.tolist() == sorted(chosen.tolist())
    assert choose_rows(50, 50, seed).tolist() == list(range(50))
    assert chosen.tolist() != choose_rows(1000, 50, seed + 1).tolist()


def test_too_few_rows_is_an_error_with_both_numbers(tokens: Path, tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"wants 1000 rows and the validation split has \d+"):
        run(tokens, tmp_path, kind="real", count=1000)


def test_the_target_is_the_text_of_a_pair(tmp_path: Path) -> None:
    pairs = [("the old market", "a river lies")] * 3
    make_tokens(tmp_path / "train", pairs, words=WORDS, length=12, max_source=4)
    texts = run(tmp_path, tmp_path / "out", held=False, kind="real", count=2)
    assert texts[0].text == texts[0].reference
    assert texts[0].source is not None
    assert "a river lies" in texts[0].text.replace("  ", " ")


def test_controls_of_pairs_stand_beside_the_same_sources_and_references(tmp_path: Path) -> None:
    pairs = [("the old market", "a river"), ("old river", "the market"), ("by a river", "lies the old")]
    make_tokens(tmp_path / "train", pairs, words=WORDS, length=12, max_source=4)
    kinds = {
        kind: run(tmp_path, tmp_path / kind, held=False, kind=kind, count=None, **more)
        for kind, more in (("real", {}), ("copy", {}), ("shuffled", {}), ("lead", {"words": 2}))
    }
    for texts in kinds.values():
        assert [(text.source, text.reference) for text in texts] == pairs
    assert [text.text for text in kinds["copy"]] == [source for source, _ in pairs]
    assert [text.text for text in kinds["lead"]] == ["the old", "old river", "by a"]
    shuffled = [text.text for text in kinds["shuffled"]]
    assert sorted(shuffled) == sorted(target for _, target in pairs)
    assert not any(text == target for text, (_, target) in zip(shuffled, pairs, strict=True))
    assert json.loads((tmp_path / "lead" / "settings.json").read_text())["words"] == 2


@given(count=st.integers(2, 50), seed=st.integers(-5, 5))
def test_another_row_is_never_the_same(count: int, seed: int) -> None:
    chosen = choose_rows(100, count, seed)
    found = others(chosen, seed)
    assert sorted(found.tolist()) == chosen.tolist()
    assert not (found == chosen).any()
