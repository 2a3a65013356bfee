import json
from pathlib import Path

import pytest

from elf.pipeline.errors import Failed
from elf.stages.texts import Text, read_lines, read_texts, write_texts


def test_texts_come_back_in_order(tmp_path: Path):
    texts = [
        Text(10, 1, "line\nend\u2028 ü", (1, 2)),
        Text(2, 1, "", ()),
        Text(0, 0, "x", None, "reference", "source"),
        Text("b", 0, "y"),
    ]
    write_texts(tmp_path / "samples.jsonl", texts)
    assert read_texts(tmp_path / "samples.jsonl") == (texts[2], texts[3], texts[1], texts[0])


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('{"id": 0, "seed": 0}', "'text' is missing"),
        ('{"id": 0, "text": 5}', "'text' is 5"),
        ('{"id": true, "text": "a"}', "'id' is True"),
        ('{"id": 0, "text": "a", "ids": [1.5]}', "'ids' is"),
        ('{"id": 0, "text": "a", "reference": null}', "'reference' is None"),
        ('{"id": 0, "text": "a", "txt": ""}', "unknown key 'txt'"),
        ('{"id": 0, "text"', "not JSON"),
        ("[1]", "list"),
        pytest.param("[" * 100_000, "nested too deeply", id="deep"),
        ('{"id": 0, "text": "a", "text": "b"}', "a key stands twice"),
        ('{"id": 0, "text": "a \\ud800 b"}', "'text' holds half a surrogate pair"),
        ('{"id": 5, "text": "again"}', "id 5 of seed 0 twice"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, named: str):
    path = tmp_path / "samples.jsonl"
    path.write_text(json.dumps({"id": 5, "text": "good"}) + "\n\n" + line + "\n")
    with pytest.raises(Failed, match=named) as failure:
        read_texts(path)
    assert str(path) in str(failure.value)
    assert "twice" in named or "line 3" in str(failure.value)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["Unix", "Windows", "old Mac"])
def test_marks_of_other_systems_are_no_part_of_a_text(tmp_path: Path, end: str):
    path = tmp_path / "samples.jsonl"
    path.write_bytes(f'\ufeff{{"id": 5, "text": "a\u2028"}}{end}{{"id": 6, "text": "b\x85"}}{end}'.encode())
    assert [text.text for text in read_texts(path)] == ["a\u2028", "b\x85"]
    assert read_lines(path)[2:] == [""]


def test_no_file_and_no_text_are_refused(tmp_path: Path):
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(Failed, match="cannot be read"):
        read_texts(tmp_path / "folder.jsonl")
    with pytest.raises(Failed, match="There is no"):
        read_texts(tmp_path / "samples.jsonl")
    (tmp_path / "samples.jsonl").write_text("\n")
    with pytest.raises(Failed, match="no text"):
        read_texts(tmp_path / "samples.jsonl")
