"""``elf score``: the same numbers as a run's for the same texts, and what must stand beside them."""

import json
from pathlib import Path
from typing import Any

import pytest
from judging import make_judge

from elf.flows.commands_score import score_file
from elf.pipeline.errors import Failed, Misconfigured

TEXTS = ["The cat sat on the mat.", "", "A bird flew over it, a small one.", "The dog ran to the house."]
REFERENCES = ["The cat sat on a mat.", "Nothing here.", "A bird flew over the house.", "The Dog ran home."]


def score(file: Path, **more: Any) -> None:
    given = {"references": None, "judge": None, "window": None, "floor": None, "store": None, "as_json": True}
    score_file(str(file), **(given | more))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "mine.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    return path


@pytest.fixture
def references(tmp_path: Path) -> str:
    path = tmp_path / "references.txt"
    path.write_text("".join(f"{text}\n" for text in REFERENCES))
    return str(path)


def test_scores_are_the_libraries_with_their_signatures(
    texts: Path, references: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import sacrebleu

    score(texts, references=references)
    found = json.loads(capsys.readouterr().out)
    lower = sacrebleu.corpus_bleu(TEXTS, [REFERENCES], lowercase=True, use_effective_order=True).score
    assert found["scores"]["bleu"]["value"] == pytest.approx(lower, abs=1e-9)
    cased = sacrebleu.corpus_bleu(TEXTS, [REFERENCES]).score
    assert found["scores"]["bleu_cased"]["value"] == pytest.approx(cased, abs=1e-9)
    assert cased < lower
    assert "case:lc|eff:yes" in found["scores"]["bleu"]["signature"]
    assert "case:mixed|eff:no" in found["scores"]["bleu_cased"]["signature"]
    assert found["scores"]["gen_ppl"] == {"reason": "no judge was named", "value": None}
    assert found["scores"]["copy_8"] == {"reason": "no training text was named", "value": None}
    assert found["counts"]["empty"] == 1
    assert found["counts"]["texts"] == 4


def test_the_judge_is_fetched_once_and_every_text_scored(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judge = f"path:{make_judge(tmp_path / 'judge')}"
    store = str(tmp_path / "store")
    score(texts, judge=judge, window=32, store=store, floor=9.0)
    first = json.loads(capsys.readouterr().out)
    assert first["counts"]["scored_tokens"] == sum(min(len(text), 32) - 1 for text in TEXTS if text)
    assert first["counts"]["over_window"] == 1
    assert first["judge"]["name"] == "judge"
    assert first["judge"]["window"] == 32
    assert any("below 9.00 (--floor)" in fault for fault in first["degenerate"])
    score(texts, judge=judge, window=32, store=store, floor=9.0)
    again = capsys.readouterr()
    assert json.loads(again.out) == first
    assert "built" not in again.err


def test_a_terminal_is_told_all_of_it(
    texts: Path, references: str, capsys: pytest.CaptureFixture[str]
) -> None:
    score(texts, references=references, as_json=False)
    shown = capsys.readouterr().out
    for said in (
        "BLEU, cased: mine",
        "stemmer:porter",
        "stemmer:no",
        "No ROUGE-Lsum",
        "No judge was named",
        "fewer than 200",
        "neither went through a tokenizer",
    ):
        assert said in shown


def test_text_that_is_split_already_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts, references = tmp_path / "a.txt", tmp_path / "b.txt"
    texts.write_text("the cat sat .\nit 's a bird , too .\n")
    references.write_text("The cat sat.\nIt's a bird, too.\n")
    score(texts, references=str(references))
    found = json.loads(capsys.readouterr().out)
    assert any("2 of 2 texts end in ' .'" in warning for warning in found["warnings"])


def test_a_byte_order_mark_and_other_line_ends_cost_no_score(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marked = tmp_path / "marked.txt"
    marked.write_bytes(b"\xef\xbb\xbf" + texts.read_bytes().replace(b"\n", b"\r\n"))
    score(marked, references=str(texts))
    found = json.loads(capsys.readouterr().out)
    same = tmp_path / "same.txt"
    same.write_bytes(texts.read_bytes())
    score(same, references=str(texts))
    assert json.loads(capsys.readouterr().out)["scores"] == found["scores"]
    assert found["scores"]["rouge_l"]["value"] == 75


def test_what_cannot_be_scored_is_refused(texts: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("one\n")
    with pytest.raises(Failed, match=r"4 texts and .* 1 references: text 2 has no reference"):
        score(texts, references=str(short))
    with pytest.raises(Misconfigured, match="--window is the judge's"):
        score(texts, window=3)
    with pytest.raises(Misconfigured, match="--floor is nan"):
        score(texts, floor=float("nan"))
    with pytest.raises(Misconfigured, match=r"no .*nowhere"):
        score(texts, judge=f"path:{tmp_path / 'nowhere'}", store=str(tmp_path / "store"))
