"""Anybody's texts: every line in its place, references by id, and nothing left out without a word."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elf.pipeline.errors import Failed, Misconfigured
from elf.stages.submitted import read_submission


def lines(folder: Path, name: str, *texts: str) -> Path:
    path = folder / name
    path.write_bytes("".join(f"{text}\n" for text in texts).encode())
    return path


def records(folder: Path, name: str, *found: Mapping[str, object]) -> Path:
    return lines(folder, name, *map(json.dumps, found))


def test_an_empty_line_is_a_text(tmp_path: Path) -> None:
    texts = read_submission(lines(tmp_path, "a.txt", "the cat", "", "the dog"), None)
    assert [(text.id, text.text) for text in texts] == [(1, "the cat"), (2, ""), (3, "the dog")]


@given(texts=st.lists(st.text(st.characters(exclude_characters="\n\r", codec="utf-8")), min_size=1))
def test_lines_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    for end in ("\n", "\r\n"):
        path.write_bytes("".join(text + end for text in texts).encode())
        assert [text.text for text in read_submission(path, None)] == texts


def test_lines_join_by_number(tmp_path: Path) -> None:
    texts = lines(tmp_path, "a.txt", "the cat", "", "the dog")
    found = read_submission(texts, lines(tmp_path, "b.txt", "a cat", "a bird", ""))
    assert [text.reference for text in found] == ["a cat", "a bird", ""]


def test_records_join_by_id_in_every_seed(tmp_path: Path) -> None:
    made = [{"id": name, "seed": seed, "text": f"{name}{seed}"} for seed in (0, 1) for name in ("b", "a")]
    references = [{"id": "a", "text": "of a"}, {"id": "b", "text": "of b"}]
    texts = read_submission(records(tmp_path, "a.jsonl", *made), records(tmp_path, "b.jsonl", *references))
    assert [(text.seed, text.id, text.reference) for text in texts] == [
        (0, "a", "of a"),
        (0, "b", "of b"),
        (1, "a", "of a"),
        (1, "b", "of b"),
    ]


@pytest.mark.parametrize(
    ("references", "said"),
    [
        (("x", "y"), "holds 3 texts and .*b.txt 2 references: text 3 has no reference"),
        (("x", "y", "z", "w"), "holds 3 texts and .*b.txt 4 references: reference 4 has no text"),
    ],
)
def test_unequal_counts_are_refused(tmp_path: Path, references: tuple[str, ...], said: str) -> None:
    with pytest.raises(Failed, match=said):
        read_submission(lines(tmp_path, "a.txt", "1", "2", "3"), lines(tmp_path, "b.txt", *references))


def test_a_seed_that_lacks_a_text_is_named(tmp_path: Path) -> None:
    made = [{"id": 0, "text": "x"}, {"id": 1, "text": "y"}, {"id": 0, "seed": 7, "text": "z"}]
    with pytest.raises(Failed, match=r"holds 1 texts of seed 7 and .* 2 references: reference 1 has no text"):
        read_submission(
            records(tmp_path, "a.jsonl", *made),
            records(tmp_path, "b.jsonl", {"id": 0, "text": "x"}, {"id": 1, "text": "y"}),
        )


def test_a_reference_is_one_text_not_a_list(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"line 1: 'text' is \['x'\]; it must be str"):
        read_submission(
            records(tmp_path, "a.jsonl", {"id": 0, "text": "x"}),
            records(tmp_path, "b.jsonl", {"id": 0, "text": ["x"]}),
        )


def test_references_come_from_one_place_and_in_one_form(tmp_path: Path) -> None:
    own = records(tmp_path, "a.jsonl", {"id": 0, "text": "x", "reference": "y"})
    with pytest.raises(Misconfigured, match="holds references already"):
        read_submission(own, records(tmp_path, "b.jsonl", {"id": 0, "text": "x"}))
    with pytest.raises(Misconfigured, match=r"\.jsonl and .* is \.txt: lines have numbers"):
        read_submission(own, lines(tmp_path, "b.txt", "x"))
    with pytest.raises(Failed, match="of several seeds"):
        read_submission(
            records(tmp_path, "c.jsonl", {"id": 0, "text": "x"}),
            records(tmp_path, "d.jsonl", {"id": 0, "text": "x"}, {"id": 0, "seed": 1, "text": "y"}),
        )


def test_files_that_hold_no_texts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "latin.txt").write_bytes(b"stra\xdfe\n")
    for name, said in (
        ("empty.txt", "no text at all"),
        ("latin.txt", "not UTF-8"),
        ("none.txt", "There is no"),
    ):
        with pytest.raises(Failed, match=said):
            read_submission(tmp_path / name, None)
    with pytest.raises(Misconfigured, match=r"should end in \.jsonl"):
        read_submission(tmp_path / "a.csv", None)
