"""No tokenizer drops a character without a word."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from elf.pipeline.errors import Failed
from elf.stages.vocabulary import TextTokenizer, load_tokenizer

PIECES = {"t": 0, "h": 1, "e": 2, "th": 3, "the": 4}
MERGES = [("t", "h"), ("th", "e")]


def load(folder: Path, **settings: Any) -> TextTokenizer:
    Tokenizer(models.BPE(PIECES, MERGES, **settings)).save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder, "hub:some/name")


@pytest.mark.parametrize("settings", [{}, {"byte_fallback": True}, {"fuse_unk": True}])
def test_what_cannot_be_spelt_is_refused_and_counted(tmp_path: Path, settings: dict[str, Any]) -> None:
    loaded = load(tmp_path, **settings)
    assert loaded.size == 5
    assert [ids.tolist() for ids in loaded.encode(["the", "hthe"])] == [[4], [1, 4]]
    said = r"The tokenizer hub:some/name cannot read .*'z' at character 3.* 3 characters of this text"
    with pytest.raises(Failed, match=said):
        loaded.encode(["the", "thezhxét"])
    assert loaded.probe(["the", "zebra"]) == [[4], []]


def test_an_unknown_token_stands_for_what_cannot_be_spelt(tmp_path: Path) -> None:
    loaded = load(tmp_path, unk_token="h")
    assert loaded.unknown_id == 1
    assert loaded.encode(["thez"])[0].tolist() == [4, 1]


def test_bytes_spell_everything(tmp_path: Path) -> None:
    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    plain = Tokenizer(models.BPE(letters, []))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    plain.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    text = "".join(map(chr, range(1, 0x300))) + "\u2028 漢字 👩‍👩‍👧"
    assert loaded.decode(loaded.encode([text])[0]) == text
    assert loaded.size == 256
