"""What a corpus holds, told without reading it."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from elf.stages.config import Asset, Source
from elf.stages.estimate import LETTERS
from elf.stages.glance import FILES, glance
from tests.stages.test_estimate import estimates

PAIRS = Source(asset=Asset(uri="path:x"), source="pair.de", target="pair.en")
TEXTS = Source(asset=Asset(uri="path:x"))


def write_pairs(path: Path, count: int) -> None:
    rows = [
        {"pair": {"de": f"Satz {row} " * 20, "en": f"sentence {row} " * 20}, "other": "y" * 500}
        for row in range(count)
    ]
    parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=100)


def test_pairs_of_a_parquet_file_are_counted(tmp_path: Path) -> None:
    write_pairs(tmp_path / "pairs.parquet", 1234)
    held = glance(tmp_path / "pairs.parquet", PAIRS)
    assert held is not None
    assert held.records == 1234
    text = 20 * sum(len(f"Satz {row} sentence {row} ") for row in range(1234))
    assert held.text == pytest.approx(text, rel=0.2), "lengths are stored beside; other columns do not count"


def test_json_lines_are_counted_by_their_beginning(tmp_path: Path) -> None:
    lines = [json.dumps({"text": "word " * 40}) for _ in range(20_000)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines) + "\n")
    held = glance(tmp_path / "texts.jsonl", TEXTS)
    assert held is not None
    assert held.records == pytest.approx(20_000, rel=0.01)
    assert held.text == (tmp_path / "texts.jsonl").stat().st_size


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_and_paragraphs_end_as_readers_end_them(tmp_path: Path, end: str) -> None:
    path = tmp_path / "texts.txt"
    path.write_bytes(f"one{end}two{end}{end} {end}three{end}".encode())
    for unit, count in (("line", 3), ("paragraph", 2)):
        held = glance(path, TEXTS.model_copy(update={"documents": unit}))
        assert held is not None
        assert held.records == count


def test_a_folder_is_judged_by_some_of_its_files(tmp_path: Path) -> None:
    for number in range(3 * FILES):
        (tmp_path / f"{number}.txt").write_text("word " * 100)
    (tmp_path / "README.md").write_text("not read" * 1000)
    held = glance(tmp_path, TEXTS)
    assert held is not None
    assert (held.records, held.text) == (3 * FILES, 3 * FILES * 500)


def test_what_cannot_be_told_is_left_to_whoever_reads_it(tmp_path: Path) -> None:
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.xyz").write_text("words")
    (tmp_path / "blank.txt").write_text("")
    parquet.write_table(pa.table({"Text": ["other column"]}), tmp_path / "column.parquet")
    parquet.write_table(pa.table({"text": [["a list"]]}), tmp_path / "list.parquet")
    parquet.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "none.parquet")
    for path in (*tmp_path.iterdir(), tmp_path / "absent.txt"):
        assert glance(path, TEXTS) is None, path


@pytest.mark.parametrize("unit", ["file", "line", "paragraph"])
def test_a_limit_counts_documents_of_plain_text(tmp_path: Path, unit: Any) -> None:
    lines = 60_000
    (tmp_path / "texts.txt").write_text(("a line of words and words\n" * 4 + "\n") * (lines // 4))
    held = glance(tmp_path / "texts.txt", TEXTS.model_copy(update={"documents": unit, "limit": 2}))
    assert held is not None
    share = {"file": 1.0, "line": 2 / (lines * 1.25), "paragraph": 8 / lines}[unit]
    assert held.text == pytest.approx((tmp_path / "texts.txt").stat().st_size * share, rel=0.02)


@pytest.mark.parametrize("words", [3, 400_000])
def test_a_guess_of_no_pairs_stops_no_plan(tmp_path: Path, words: int) -> None:
    """A last line needs no end; a first one may be longer than what is looked at."""
    pair = json.dumps({"pair.de": "Wort " * words, "pair.en": "word " * words})
    (tmp_path / "pairs.jsonl").write_text(pair)
    held = glance(tmp_path / "pairs.jsonl", PAIRS)
    assert held is not None
    assert held.records >= 1
    pairs = f"{{asset: {{uri: 'path:{tmp_path}/pairs.jsonl'}}, source: pair.de, target: pair.en}}"
    made = estimates("de-en", f"data.train={pairs}", "data.validation=null", "data.holdout=0.001")
    assert made["sample-ode-w2"].rows == 0


def test_a_plan_knows_the_rows_of_local_pairs(tmp_path: Path) -> None:
    write_pairs(tmp_path / "pairs.parquet", 1234)
    pairs = f"{{asset: {{uri: 'path:{tmp_path}/pairs.parquet'}}, source: pair.de, target: pair.en}}"
    own = [f"data.train={pairs}", f"data.validation={pairs}"]
    made = estimates("de-en", *own)
    assert made["tokenize"].rows == 1234
    assert estimates("de-en", *own, "data.train.limit=100")["tokenize"].rows == 100


def test_a_plan_knows_the_text_of_a_compressed_corpus(tmp_path: Path) -> None:
    table = pa.table({"text": [f"{row} " + "the same words again and again " * 40 for row in range(1000)]})
    parquet.write_table(table, tmp_path / "texts.parquet")
    size = (tmp_path / "texts.parquet").stat().st_size
    own = [
        f"data.train.asset={{uri: 'path:{tmp_path}/texts.parquet'}}",
        "data.train.share=1.0",
        "data.holdout=0.5",
    ]
    rows = estimates("quickstart", *own)["tokenize"].rows
    text = sum(len(text) for text in table["text"].to_pylist())
    assert size < text / 10
    assert rows == pytest.approx(text / LETTERS / 2 / 32, rel=0.05)
