import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from corpora import ENGLISH

from elf.pipeline.errors import Misconfigured
from elf.stages.subwords import SENTINELS, train_unigram
from elf.stages.tokenizer import save_tokenizer
from elf.stages.vocabulary import load_tokenizer, round_trip


def test_bytes_depend_on_the_texts_alone() -> None:
    program = (
        "import sys, hashlib; sys.path.insert(0, sys.argv[1]); from corpora import ENGLISH; "
        "from elf.stages.subwords import train_unigram; "
        "print(hashlib.sha256(train_unigram(ENGLISH * 3, size=160).to_str().encode()).hexdigest())"
    )
    support = str(Path(__file__).parent.parent / "support")
    found = {
        subprocess.run(
            [sys.executable, "-c", program, support],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    backwards = train_unigram(reversed(ENGLISH * 3), size=160).to_str()
    assert found == {hashlib.sha256(backwards.encode()).hexdigest()}


def test_ids_are_laid_out_as_t5_has_them() -> None:
    tokenizer = train_unigram(ENGLISH * 3, size=160)
    assert [tokenizer.id_to_token(index) for index in range(4)] == ["<pad>", "</s>", "<unk>", "▁the"]
    assert tokenizer.get_vocab_size(with_added_tokens=False) == 160
    assert tokenizer.get_vocab_size() == 260
    assert tokenizer.token_to_id("<extra_id_0>") == 259
    assert tokenizer.token_to_id("<extra_id_99>") == 160
    assert len(SENTINELS) == 100
    assert tokenizer.encode("the the").tokens == ["▁the", "▁the", "</s>"]


def test_known_text_comes_back_and_pieces_save_tokens(tmp_path: Path) -> None:
    save_tokenizer(train_unigram(ENGLISH * 3, size=160), tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.pad_id == 0
    for text in ENGLISH:
        assert round_trip(loaded, text) == text
        assert len(loaded.encode([text])[0]) < len(text) / 1.8


def test_no_piece_joins_letters_and_punctuation() -> None:
    tokenizer = train_unigram([*ENGLISH, "end. end. end. (end) (end)"] * 5, size=200)
    pieces = [
        piece.removeprefix("▁") for piece in tokenizer.get_vocab(with_added_tokens=False) if "<" not in piece
    ]
    assert all(piece.isalnum() or not any(letter.isalnum() for letter in piece) for piece in pieces)


def test_little_text_gives_fewer_pieces() -> None:
    tokenizer = train_unigram(["a b a b"], size=100)
    assert tokenizer.get_vocab_size(with_added_tokens=False) < 10
    assert tokenizer.encode("a b").tokens == ["▁a", "▁b", "</s>"]


def test_a_size_below_the_characters_is_refused() -> None:
    with pytest.raises(Misconfigured, match=r"size is 20, but the text has \d+ characters"):
        train_unigram(ENGLISH, size=20)
