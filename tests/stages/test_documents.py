import bz2
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import make_source

from elf.pipeline.errors import Failed
from elf.stages.documents import Corpus, Document, Skipped, chosen

GOOD = [{"id": f"d{index}", "text": f"document number {index}"} for index in range(4)]
PAIRS = {"source": "source", "target": "target"}


def lines(*records: Any) -> str:
    return "".join(f"{record if isinstance(record, str) else json.dumps(record)}\n" for record in records)


def read(folder: Path, **settings: Any) -> list[Document | Skipped]:
    return list(Corpus(folder, make_source(**settings), "the corpus").documents())


def texts(folder: Path, **settings: Any) -> list[str]:
    return [event.sides[0] for event in read(folder, **settings) if isinstance(event, Document)]


def write_parquet(path: Path, columns: dict[str, Any]) -> None:
    pq.write_table(pa.table(columns), path)


@pytest.mark.parametrize(
    ("bad", "said", "reason"),
    [
        (
            {"id": "x", "body": "b"},
            "the key 'text' is missing (there are: id, body)",
            "the key 'text' is missing",
        ),
        ({"id": "x", "text": None}, "the key 'text' is null", "the key 'text' is null"),
        ({"id": "x", "text": 12345}, "the key 'text' is a number (12345)", "the key 'text' is a number"),
        ({"id": "x", "text": ["a"]}, "the key 'text' is a list", "the key 'text' is a list"),
        ({"id": "x", "text": True}, "the key 'text' is true or false", "the key 'text' is true or false"),
        ({"id": [1], "text": "t"}, "the key 'id' is a list", "the key 'id' is a list"),
        ('{"id": "x", "text": "trailing comma",}', "not JSON", "not JSON"),
        ('{"id": "x", "text": "a", "text": "b"}', "twice", "not JSON"),
        ('{"id": "x", "text": "a", "n": NaN}', "NaN", "not JSON"),
        ('["id", "text"]', "a list", "not an object"),
        ('{"id": "x", "text": "\\ud800"}', "surrogate", "the key 'text' holds half a surrogate pair"),
        ("[" * 100_000, "not JSON", "not JSON"),
    ],
)
def test_a_record_without_text_is_an_error_or_a_counted_skip(
    tmp_path: Path, bad: Any, said: str, reason: str
) -> None:
    (tmp_path / "a.jsonl").write_text(lines(*GOOD, bad, *GOOD[:1]))
    with pytest.raises(Failed) as error:
        read(tmp_path)
    assert "a.jsonl, line 5: " in str(error.value)
    assert said in str(error.value)
    events = read(tmp_path, on_bad="skip")
    assert [event for event in events if isinstance(event, Skipped)] == [Skipped("a.jsonl", 5, reason)]
    assert len(events) == 6


def test_bytes_that_are_not_utf8_are_placed(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(GOOD[0]).encode() + b'{"text": "caf\xe9"}\n')
    with pytest.raises(Failed, match=r"line 2: not UTF-8 .byte 0xe9 at offset 13"):
        read(tmp_path)
    (tmp_path / "a.jsonl").unlink()
    (tmp_path / "a.txt").write_bytes("grün\nrot\n".encode() + b"caf\xe9")
    with pytest.raises(Failed, match="line 3: not UTF-8"):
        read(tmp_path)


def test_a_cut_last_line_is_told_from_a_last_line_without_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(lines(*GOOD).removesuffix("\n"))
    assert len(read(tmp_path)) == 4
    path.write_text(lines(*GOOD)[:-10])
    with pytest.raises(Failed, match="line 4: the last line is cut off"):
        read(tmp_path)


def test_marks_and_blank_lines_are_no_records(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + lines(GOOD[0], "", "  ", GOOD[1]).encode())
    assert [event.place for event in read(tmp_path)] == [1, 4]
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfword")
    assert texts(tmp_path)[-1] == "word"


def test_files_may_differ_in_everything_but_the_text(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text(
        lines({"text": "z", "note": "text now", "id": 7}, {"id": "b1", "text": "w", "x": 1})
    )
    (tmp_path / "a.jsonl").write_text(lines({"id": "a0", "text": "x", "note": None}, {"text": "y"}))
    assert [(event.id, event.named) for event in read(tmp_path) if isinstance(event, Document)] == [
        ("a0", True), ("a.jsonl:2", False), ("7", True), ("b1", True)
    ]  # fmt: skip


def test_parquet_rows_are_judged_one_by_one(tmp_path: Path) -> None:
    write_parquet(tmp_path / "one.parquet", {"id": ["a", "b"], "text": ["x", "y"]})
    write_parquet(tmp_path / "two.parquet", {"text": ["z", None], "id": pa.array([1, 2], pa.int64())})
    with pytest.raises(Failed, match=r"two\.parquet, row 2: the key 'text' is null"):
        read(tmp_path)
    events = read(tmp_path, on_bad="skip")
    assert [event.id for event in events if isinstance(event, Document)] == ["a", "b", "1"]
    write_parquet(tmp_path / "two.parquet", {"text": [1, 2], "id": ["a", "b"]})
    with pytest.raises(Failed, match=r"two\.parquet, row 1: the key 'text' is a number"):
        read(tmp_path)


def test_a_text_of_parquet_that_is_not_utf8_is_one_bad_row(tmp_path: Path) -> None:
    raw = pa.array([b"good", b"caf\xe9 au lait", b"good too"], pa.binary())
    write_parquet(tmp_path / "a.parquet", {"text": pa.Array.from_buffers(pa.string(), 3, raw.buffers())})
    with pytest.raises(Failed, match=r"a\.parquet, row 2: not UTF-8 \(byte 0xe9 at offset 3 of a text\)"):
        read(tmp_path, id=None)
    assert texts(tmp_path, id=None, on_bad="skip") == ["good", "good too"]


def test_an_id_that_is_none_is_told_from_a_bad_text(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", {"id": [1.0, 2.0], "text": ["x", "y"]})
    with pytest.raises(Failed, match=r"the key 'id' is a number .*Set `id: null`"):
        read(tmp_path)
    assert texts(tmp_path, id=None) == ["x", "y"]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"pair": {"de": "Hund", "en": "dog"}}, r"'pair\.fr' is missing \(there are: pair\.de, pair\.en\)"),
        ({"pair": None, "id": 1}, r"'pair\.fr' is null"),
    ],
)
def test_what_lies_inside_a_column_is_named(tmp_path: Path, record: Any, said: str) -> None:
    (tmp_path / "a.jsonl").write_text(lines(record))
    with pytest.raises(Failed, match=said):
        read(tmp_path, text="pair.fr")


def test_a_column_that_stands_twice_is_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["text", "text"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(Failed, match=r"a\.parquet has the column 'text' twice"):
        read(tmp_path)


@pytest.mark.parametrize("kind", ["cut", "rows", "column", "empty"])
@pytest.mark.parametrize("on_bad", ["error", "skip"])
def test_a_parquet_file_that_cannot_be_read_is_always_an_error(
    tmp_path: Path, kind: str, on_bad: str
) -> None:
    path = tmp_path / "bad.parquet"
    write_parquet(path, {"body" if kind == "column" else "text": ["x"] * 100})
    if kind == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    if kind == "empty":
        path.write_bytes(b"")
    if kind == "rows":
        write_parquet(path, {"text": pa.array([], pa.string())})
    with pytest.raises(Failed, match=r"bad\.parquet") as error:
        read(tmp_path, on_bad=on_bad)
    assert {"cut": "no whole", "empty": "no whole", "rows": "0 rows", "column": "its columns are body"}[
        kind
    ] in str(error.value)


def test_columns_may_lie_inside_others(tmp_path: Path) -> None:
    pair = {"translation": {"de": "Hund", "en": "dog"}}
    (tmp_path / "a.jsonl").write_text(lines(pair))
    write_parquet(tmp_path / "b.parquet", {"translation": [pair["translation"]]})
    events = read(tmp_path, source="translation.de", target="translation.en")
    assert [event.sides for event in events if isinstance(event, Document)] == [("Hund", "dog")] * 2
    with pytest.raises(Failed, match=r"'translation\.fr' is missing"):
        read(tmp_path, source="translation.de", target="translation.fr")


def test_a_pair_without_target_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines({"source": "s", "target": "t"}, {"source": "s"}))
    with pytest.raises(
        Failed, match=r"line 2: the key 'target' is missing .*\(`target: …` in the data section\)"
    ):
        read(tmp_path, **PAIRS)
    (tmp_path / "a.jsonl").unlink()
    (tmp_path / "a.txt").write_text("no columns here")
    with pytest.raises(Failed, match="plain text"):
        read(tmp_path, **PAIRS)


def test_text_files_are_one_document_each_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a.txt", "B.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{name}\r\n\n{name}")
    events = [event for event in read(tmp_path) if isinstance(event, Document)]
    assert [event.id for event in events] == ["B.txt", "a.txt", "a/z.txt", "b.txt"]
    assert events[0].sides == ("B.txt\r\n\nB.txt",)


def test_suffixes_decide_unless_the_format_is_given(tmp_path: Path) -> None:
    (tmp_path / "corpus.dat").write_text(lines(*GOOD))
    with pytest.raises(Failed, match=r"end in \.dat, read are"):
        read(tmp_path)
    assert len(read(tmp_path, format="jsonl")) == 4
    (tmp_path / "a.txt").write_text("word")
    corpus = Corpus(tmp_path, make_source(), "the corpus")
    assert corpus.passed_over() == ["corpus.dat"]
    assert len(list(corpus.documents())) == 1


def test_a_limit_counts_usable_documents(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(GOOD[0], {"text": 1}, GOOD[1], GOOD[2]))
    assert len(read(tmp_path, limit=2, on_bad="skip")) == 3


def test_equal_texts_share_a_split_and_the_share_is_kept() -> None:
    def side(text: str, name: str = "x") -> bool:
        return chosen(Document("f", 1, name, True, (text,)), "validation", 0.25)

    taken = [side(f"text {index}") for index in range(4000)]
    assert 0.22 < sum(taken) / 4000 < 0.28
    assert [side(f"text {index}", "other") for index in range(100)] == taken[:100]
    for index in range(100):
        document = Document("f", 1, "x", True, (f"text {index}",))
        assert chosen(document, "train", 0.25) != chosen(document, "validation", 0.25)
        assert chosen(document, "train", 0.0)
        assert chosen(document, "validation", 1.0)


def test_a_share_is_chosen_by_text_and_splits_like_the_whole() -> None:
    documents = [Document("f", 1, str(number), True, (f"text {number}",)) for number in range(400)]
    read = [each for each in documents if chosen(each, "train", 0.0, 0.25)]
    assert 60 < len(read) < 140
    for each in documents:
        told = [chosen(each, split, 0.25, 0.25) for split in ("train", "validation")]
        assert sum(told) == (each in read)
        if each in read:
            assert told[0] == chosen(each, "train", 0.25)


def test_plain_text_is_divided_as_asked(tmp_path: Path) -> None:
    raw = "\ufeff\n  one\r\nand two\r\n \t\r\n\r\nthree\n\n\n four"
    (tmp_path / "a.txt").write_bytes(raw.encode())
    assert texts(tmp_path) == [raw.removeprefix("\ufeff")]
    assert texts(tmp_path, documents="paragraph") == ["  one\r\nand two", "three", " four"]
    assert texts(tmp_path, documents="line") == ["  one", "and two", "three", " four"]


def test_divided_text_is_named_by_its_first_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\nand more\n\nthree\n")
    found = read(tmp_path, documents="paragraph")
    assert [(each.id, each.place) for each in found if isinstance(each, Document)] == [
        ("a.txt:1", 1),
        ("a.txt:3", 3),
        ("a.txt:6", 6),
    ]


def test_a_bad_paragraph_is_skipped_alone(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\n\ntwo\ncaf\xe9\n\nthree\n")
    with pytest.raises(Failed, match=r"a\.txt, line 4: not UTF-8 \(byte 0xe9 at offset 7 of the paragraph\)"):
        texts(tmp_path, documents="paragraph")
    assert texts(tmp_path, documents="paragraph", on_bad="skip") == ["one", "three"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["Unix", "Windows", "old Mac"])
def test_lines_end_alike_whoever_wrote_them(tmp_path: Path, end: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(end.join((b"one", "two\u2028 or\x85 so".encode(), b"", b"caf\xe9")))
    with pytest.raises(Failed, match=r"a\.txt, line 4: not UTF-8 \(byte 0xe9 at offset 3 of the line\)"):
        texts(tmp_path, documents="line")
    with pytest.raises(Failed, match=r"a\.txt, line 4: not UTF-8"):
        texts(tmp_path)
    assert texts(tmp_path, documents="line", on_bad="skip") == ["one", "two\u2028 or\x85 so"]
    (tmp_path / "a.txt").unlink()
    records = [json.dumps({"text": text}, ensure_ascii=False).encode() for text in ("a\u2028b", "c\x85d")]
    (tmp_path / "b.jsonl").write_bytes(end.join((*records, b'{"text": ')))
    with pytest.raises(Failed, match=r"b\.jsonl, line 3: the last line is cut off"):
        texts(tmp_path)
    assert texts(tmp_path, on_bad="skip") == ["a\u2028b", "c\x85d"]


@pytest.mark.parametrize("form", ["text", "jsonl", "parquet"])
@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (gzip.compress(b"a text"), "gzip"),
        (bz2.compress(b"a text"), "bzip2"),
        (lzma.compress(b"a text"), "xz"),
        (b"\x28\xb5\x2f\xfd\x04\x00\x11\x00\x00", "Zstandard"),
        (b"PK\x03\x04\x14\x00", "zip"),
    ],
    ids=["gzip", "bzip2", "xz", "Zstandard", "zip"],
)
def test_a_compressed_file_is_refused_whatever_it_is_called(
    tmp_path: Path, form: str, raw: bytes, name: str
) -> None:
    (tmp_path / "a.jsonl.packed").write_bytes(raw)
    with pytest.raises(
        Failed, match=rf"a\.jsonl\.packed is compressed \({name}\).* as {form}; compressed files are not"
    ):
        read(tmp_path, format=form, on_bad="skip")


def test_a_text_about_compressed_files_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("BZh is how they begin")
    assert texts(tmp_path) == ["BZh is how they begin"]
