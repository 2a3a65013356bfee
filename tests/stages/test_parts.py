from pathlib import Path

import pytest
from corpora import make_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from elf.cache.errors import Damaged
from elf.pipeline.errors import Failed
from elf.stages.documents import Document, Skipped
from elf.stages.parts import Measure, PartMaker, chunked, find_duplicates, part_name, read_parts
from elf.stages.vocabulary import load_tokenizer

Event = Document | Skipped


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer")).path / "data"


def events(count: int) -> list[Event]:
    return [
        Skipped("f", place, "why")
        if place % 5 == 4
        else Document("f", place, f"d{place}", True, ("the market",))
        for place in range(count)
    ]


def make(
    folder: Path, tokenizer: Path, stream, *, records: int = 4, wanted: int | None = None, workers: int = 1
) -> int:  # type: ignore[no-untyped-def]
    done: list[int] = []
    maker = PartMaker(
        folder, tokenizer, workers, lambda tokens, documents: wanted is not None and documents >= wanted, done.append,
        records=records,
    )  # fmt: skip
    maker.make(stream)
    return sum(done)


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("the market", 0),
        ("the  market", 1),
        ("the\nmarket", 1),
        ("the\n\n market\t walk", 2),
        (" the", 1),
        ("the ", 1),
        ("a\u00a0b", 1),
        ("\n", 1),
        ("", 0),
    ],
)
def test_folded_white_space_is_counted_by_stretch(tokenizer: Path, text: str, lost: int) -> None:
    assert Measure(load_tokenizer(tokenizer)).folded(text) == lost


def test_special_strings_are_counted(tokenizer: Path) -> None:
    measure = Measure(load_tokenizer(tokenizer))
    assert measure.special("a </s> b <extra_id_10><extra_id_1> </S>") == 3


@given(
    sizes=st.lists(st.integers(0, 30), max_size=20), records=st.integers(1, 5), characters=st.integers(1, 40)
)
def test_chunks_are_the_stream_in_order(sizes: list[int], records: int, characters: int) -> None:
    stream: list[Event] = [Document("f", i, str(i), True, ("x" * size,)) for i, size in enumerate(sizes)]
    chunks = list(chunked(stream, records, characters))
    assert [event for chunk in chunks for event in chunk] == stream
    assert all(1 <= len(chunk) <= records for chunk in chunks)


def test_parts_are_read_back_in_order(tmp_path: Path, tokenizer: Path) -> None:
    assert make(tmp_path / "parts", tokenizer, iter(events(11))) == 11
    found = list(read_parts(tmp_path / "parts"))
    assert [(record.id, record.reason) for record in found] == [
        ("", "why") if isinstance(event, Skipped) else (event.id, None) for event in events(11)
    ]
    assert all(record.target.size == 2 for record in found if record.reason is None)


def test_finished_parts_are_kept_and_damaged_ones_made_again(tmp_path: Path, tokenizer: Path) -> None:
    folder = tmp_path / "parts"
    make(folder, tokenizer, iter(events(11)))
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.glob("*.arrow")}
    (folder / "complete.json").unlink()
    (folder / part_name(1)).write_bytes(b"cut")
    (folder / part_name(2)).with_suffix(".json").unlink()
    make(folder, tokenizer, iter(events(11)))
    after = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.glob("*.arrow")}
    assert {name: raw for name, (raw, _) in before.items()} == {name: raw for name, (raw, _) in after.items()}
    assert [before[part_name(i)][1] == after[part_name(i)][1] for i in range(3)] == [True, False, False]


def test_parts_of_other_records_are_not_taken(tmp_path: Path, tokenizer: Path) -> None:
    folder = tmp_path / "parts"
    make(folder, tokenizer, iter(events(8)))
    (folder / "complete.json").unlink()
    make(folder, tokenizer, iter(events(9)[1:]))
    assert [record.id for record in read_parts(folder)][:3] == ["d1", "d2", "d3"]


def test_a_part_that_changed_is_never_data(tmp_path: Path, tokenizer: Path) -> None:
    make(tmp_path / "parts", tokenizer, iter(events(4)))
    path = tmp_path / "parts" / part_name(0)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(Damaged, match="changed after it was written"):
        list(read_parts(tmp_path / "parts"))


@pytest.mark.parametrize(("records", "workers"), [(1, 1), (3, 1), (100, 1), (3, 2)])
def test_a_fault_behind_what_is_wanted_does_not_matter(
    tmp_path: Path, tokenizer: Path, records: int, workers: int
) -> None:
    def stream():  # type: ignore[no-untyped-def]
        yield from events(8)
        raise Failed("line 9 is bad")

    make(tmp_path / "enough", tokenizer, stream(), records=records, wanted=6, workers=workers)
    with pytest.raises(Failed, match="line 9"):
        make(tmp_path / "short", tokenizer, stream(), records=records, wanted=8, workers=workers)
    assert not (tmp_path / "short" / "complete.json").exists()


def test_ids_borne_twice_are_listed_once(tmp_path: Path, tokenizer: Path) -> None:
    names = ["b", "a", "b", "c", "a", "a"]
    stream = [Document("f", place, name, True, ("the",)) for place, name in enumerate(names)]
    stream += [Document("f", 6 + place, "f:6", False, ("the",)) for place in range(2)]
    make(tmp_path / "parts", tokenizer, iter(stream))
    assert find_duplicates(tmp_path / "parts", 8).first == ["a", "b"]
    assert find_duplicates(tmp_path / "parts", 3).first == ["b"]
