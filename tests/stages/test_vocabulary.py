import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpora import make_tokenizer
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from elf.pipeline.errors import Failed, Misconfigured
from elf.stages.vocabulary import TextTokenizer, Vocabulary, decode_texts, load_tokenizer, round_trip


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return load_tokenizer(make_tokenizer(tmp_path_factory.mktemp("tokenizer")).path / "data")


USED = Vocabulary(
    mode="used", size=4, tokenizer_size=10, ids=(1, 2, 5, 9), unknown_id=2, end_id=1, pad_id=0, end_token="</s>",
    length=8, max_source=None,
)  # fmt: skip
FULL = replace(USED, mode="full", size=10, ids=None)


@pytest.mark.parametrize("text", ["see </s> here", "<pad><extra_id_0>", "full ＜/s＞ width", "</s>", "<unk>"])
def test_special_strings_in_text_never_become_special(tokenizer: TextTokenizer, text: str) -> None:
    special = {value for value in tokenizer.specials.values() if value != tokenizer.unknown_id}
    assert not special & set(tokenizer.encode([text])[0].tolist())


def test_a_special_string_without_unknown_token_is_refused(tmp_path: Path) -> None:
    plain = Tokenizer(models.WordLevel({"</s>": 0, "a": 1}, unk_token="<none>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    plain.add_special_tokens(["</s>"])
    plain.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(Failed, match="no unknown token"):
        load_tokenizer(tmp_path).encode(["</s>"])


def test_what_a_tokenizer_file_says_of_cutting_and_padding_is_not_done(tmp_path: Path) -> None:
    plain = Tokenizer(models.WordPiece({"[UNK]": 0, "[PAD]": 1, "[SEP]": 2, "a": 3}, unk_token="[UNK]"))
    plain.normalizer = normalizers.BertNormalizer()
    plain.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    plain.add_special_tokens(["[UNK]", "[PAD]", "[SEP]"])
    plain.enable_truncation(3)
    plain.enable_padding(length=12)
    plain.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"pad_token": {"content": "[PAD]"}}))
    loaded = load_tokenizer(tmp_path)
    assert [ids.tolist() for ids in loaded.encode(["a", "a " * 8])] == [[3], [3] * 8]
    assert (loaded.unknown_id, loaded.pad_id, loaded.size) == (0, 1, 4)


@pytest.mark.parametrize(
    ("token", "fault"),
    [("[SEP]", "does not have"), ("<unk>", "first such piece"), ("▁the", "no special token")],
)
def test_only_a_special_token_that_no_text_gives_is_an_end_mark(
    tokenizer: TextTokenizer, token: str, fault: str
) -> None:
    assert tokenizer.end_id("</s>") == 1
    with pytest.raises(
        Misconfigured,
        match=f"{re.escape(repr(token))}, which the tokenizer {tokenizer.shown} .*{fault}.*: <pad>, </s>\\.",
    ):
        tokenizer.end_id(token)


@pytest.mark.parametrize(
    ("model", "special"),
    [({"unk_token": "[UNK]"}, False), ({"unk_token": "[SEP]"}, True)],
    ids=["an added token that is not special", "the unknown token"],
)
def test_an_end_mark_that_pieces_of_texts_become_is_refused(
    tmp_path: Path, model: dict[str, Any], special: bool
) -> None:
    plain = Tokenizer(models.WordLevel({"[UNK]": 0, "[SEP]": 1, "the": 2}, **model))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    plain.add_tokens([AddedToken("[SEP]", normalized=False, special=special)])
    plain.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(Misconfigured, match=r"documents .*would end"):
        load_tokenizer(tmp_path).end_id("[SEP]")


def test_the_ids_are_a_function_of_the_text(tmp_path: Path) -> None:
    merges = [("t", "h"), ("th", "e")]
    plain = Tokenizer(models.BPE({"t": 0, "h": 1, "e": 2, "th": 3, "the": 4}, merges, dropout=0.5))
    plain.save(str(tmp_path / "tokenizer.json"))
    found = load_tokenizer(tmp_path).encode(["the" * 100] * 3)
    assert [ids.tolist() for ids in found] == [[4] * 100] * 3


@pytest.mark.parametrize(
    "model",
    [
        models.WordLevel({"the": 0}, unk_token="[UNK]"),
        models.WordPiece({"the": 0}, unk_token="[UNK]"),
        models.Unigram([("the", -1.0), *((letter, -9.0) for letter in "the")], None, False),
    ],
    ids=["words", "word pieces", "unigrams"],
)
def test_a_tokenizer_without_its_unknown_token_says_so_when_it_is_wanted(tmp_path: Path, model: Any) -> None:
    Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path, "hub:some/name")
    assert loaded.encode(["the"])[0].tolist() == [0]
    with pytest.raises(Failed, match=r"tokenizer hub:some/name cannot read a text: .*model\.unk_token"):
        loaded.encode(["the", "zebra"])
    assert loaded.probe(["the", "zebra"]) == [[0], []]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"pad_token":', "cannot be read as JSON: Expecting value"),
        ("[1, 2]", "not one JSON object"),
        ('{"pad_token": ["<pad>"]}', r'pad_token is \["<pad>"\]; it must be a string'),
        ('{"pad_token": {"x": 1}}', 'pad_token is {"x": 1}; it must be a string'),
        ('{"pad_token": 3}', "pad_token is 3; it must be a string"),
    ],
)
@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
def test_files_beside_the_tokenizer_that_hold_something_else_are_named(
    tmp_path: Path, name: str, content: str, said: str
) -> None:
    Tokenizer(models.WordLevel({"the": 0}, unk_token="the")).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / name).write_text(content)
    with pytest.raises(Failed, match=f"{name} of the tokenizer /mine.* {said}"):
        load_tokenizer(tmp_path, "/mine")


def test_texts_end_at_the_first_end_mark(tokenizer: TextTokenizer) -> None:
    the = tokenizer.encode(["the"])[0]
    row = np.array([*the, *the, 1, *the, 0, 1])
    assert decode_texts(tokenizer, row[None], 1) == ["the the"]
    assert decode_texts(tokenizer, [np.array([1, *the])], 1) == [""]
    assert round_trip(tokenizer, "the  market\n walk") == "the market walk"


def test_folders_without_a_readable_tokenizer_are_named(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"holds no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 1}')
    with pytest.raises(Failed, match="no readable tokenizer"):
        load_tokenizer(tmp_path)


def test_head_ids_and_back() -> None:
    assert USED.to_head(np.array([1, 2, 5, 9, 7])).tolist() == [0, 1, 2, 3, 1]
    assert USED.to_tokenizer(np.array([[0, 3], [2, 1]])).tolist() == [[1, 9], [5, 2]]
    assert FULL.to_head(np.array([0, 9])).tolist() == [0, 9]
    with pytest.raises(Failed, match="no unknown token"):
        replace(USED, unknown_id=None).to_head(np.array([7]))


@pytest.mark.parametrize("wrong", [-1, 10])
def test_ids_outside_are_refused_with_both_sizes(wrong: int) -> None:
    for vocabulary in (USED, FULL):
        with pytest.raises(Failed, match=f"Token id {wrong} is outside: the tokenizer has 10"):
            vocabulary.to_head(np.array([1, wrong]))
    with pytest.raises(Failed, match=r"the head has 4 .the tokenizer 10"):
        USED.to_tokenizer(np.array([4]))


def test_the_file_is_read_back_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.json"
    for vocabulary in (USED, FULL):
        vocabulary.write(path)
        assert Vocabulary.read(path) == vocabulary
    plain = json.loads(path.read_text())
    for damage in ({"size": 9}, {"ids": [2, 1], "size": 2}, {"extra": 1}):
        path.write_text(json.dumps({**plain, **damage}))
        with pytest.raises(Failed, match=r"vocabulary\.json"):
            Vocabulary.read(path)
