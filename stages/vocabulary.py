"""Tokenizers as the stages use them, and the vocabulary that a model's decode head knows.

Two id spaces: *tokenizer ids*, which all files hold, and *head ids*, positions in the decode head. They are the
same unless ``tokenize.vocabulary`` is ``used``. Nothing here loads torch or transformers.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from tokenizers import Tokenizer

from elf.cache.files import write_atomic
from elf.pipeline.errors import Failed, Misconfigured
from elf.stages.spelling import drops_silently, make_outspoken, refuse_unspelt

if TYPE_CHECKING:
    from elf.stages.config import Tokenize

TOKENIZER_FILE = "tokenizer.json"
_FAST = "Name a tokenizer in Hugging Face's fast format (save_pretrained of a fast tokenizer writes it)."
_AGAIN = "Run tokenize again with --force."
_NAMED = 10
"""Special tokens that a message names."""


@dataclass(frozen=True, slots=True)
class TextTokenizer:
    """A tokenizer that adds nothing, cuts nothing, pads nothing and leaves nothing to chance.

    Special strings in raw text (``</s>`` in a web page) are text: no special id but the unknown one comes out of
    ``encode``. ``specials`` maps special strings to ids; ``unknown_id`` and ``pad_id`` are None where a tokenizer
    has none. ``shown`` names it in messages.
    """

    backend: Tokenizer
    size: int
    specials: Mapping[str, int]
    unknown_id: int | None
    pad_id: int | None
    shown: str
    unspelt_id: int | None = None
    """What the backend gives for a character that it would drop without a word; no id of the tokenizer's."""

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids (int32) of each text, without marks at either end.

        Raises Failed where a piece comes up that has no id, or is spelt like a special token, and there is no unknown
        id to stand for it.
        """
        try:
            encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as error:  # the library raises bare Exception
            raise Failed(
                f"The tokenizer {self.shown} cannot read a text: {error}. Where it lacks a token for what it does not "
                f"know, name one of its model.vocab as that in its {TOKENIZER_FILE} (model.unk_token, or model.unk_id "
                "of a Unigram model), or choose another tokenizer."
            ) from error
        found = [np.asarray(encoding.ids, dtype=np.int32) for encoding in encodings]
        if self.unspelt_id is not None:
            refuse_unspelt(self.backend, self.unspelt_id, texts, found, self.shown)
        return [self._plain(ids) for ids in found]

    def probe(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, and none of a text that ``encode`` refuses."""
        return [self._probe(text) for text in texts]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Text of ``ids``; special tokens, the unknown one included, leave no trace."""
        return self.backend.decode(list(map(int, ids)), skip_special_tokens=True)

    def end_id(self, token: str) -> int:
        """Id of the end mark ``token``.

        Raises Misconfigured where the tokenizer does not hold it, or could give it for a piece of a text.
        """
        found = self.backend.token_to_id(token)
        if found is not None and found == self.specials.get(token) and found != self.unknown_id:
            return found
        if found is None:
            fault = "does not have"
        elif found == self.unknown_id:
            fault = "gives for whatever it does not know: documents would end at the first such piece"
        else:
            fault = (
                "takes for a piece like any other, no special token: documents that hold it would end there"
            )
        special = [name for name, value in self.specials.items() if value != self.unknown_id]
        named = [name for name in special if not name.startswith("<extra_id_")][:_NAMED]
        raise Misconfigured(
            f"tokenize.end_token is {token!r}, which the tokenizer {self.shown} {fault}. Set it to the one of its "
            f"special tokens that ends a text: {', '.join(named) or '(it has none, choose another tokenizer)'}."
        )

    def _probe(self, text: str) -> list[int]:
        try:
            return self.encode([text])[0].tolist()
        except Failed:
            return []

    def _plain(self, ids: np.ndarray) -> np.ndarray:
        special = np.isin(ids, [value for value in self.specials.values() if value != self.unknown_id])
        if not special.any():
            return ids
        if self.unknown_id is None:
            token = self.backend.id_to_token(int(ids[special][0]))
            raise Failed(
                f"A text holds {token!r} and the tokenizer {self.shown}, which has no unknown token, can only read it "
                "as the special token of that name. Take that string out of the text or choose another tokenizer."
            )
        return np.where(special, np.int32(self.unknown_id), ids)


def describe_tokenizer(config: Mapping[str, Any]) -> str:
    """How to name a tokenizer in messages, from the settings of the stage that brought it: its local path or URI."""
    return str(config.get("location") or config.get("source") or "trained here")


def load_tokenizer(folder: Path, shown: str = "") -> TextTokenizer:
    """The tokenizer in a Hugging Face tokenizer folder, read from its ``tokenizer.json``.

    ``shown`` names it in messages, instead of ``folder``. Raises Failed where a file of it is missing or damaged.
    """
    shown = shown or str(folder)
    path = folder / TOKENIZER_FILE
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        backend = Tokenizer.from_file(str(path))
        size = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        silent = drops_silently(plain["model"])
        if silent:
            backend = make_outspoken(plain, size)
    except FileNotFoundError as error:
        raise Failed(
            f"{folder} holds no {TOKENIZER_FILE}, so there is no tokenizer in it. {_FAST}"
        ) from error
    except Exception as error:  # the library raises bare Exception
        raise Failed(f"{path} is no readable tokenizer: {error}. {_FAST}") from error
    # One thread a process: work is spread over processes, and threads of the library do not survive a fork.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    backend.no_truncation()
    backend.no_padding()
    if getattr(backend.model, "dropout", None):
        backend.model.dropout = None
    # Without this the library finds special tokens in raw text.
    backend.encode_special_tokens = True
    vocabulary = backend.get_vocab(with_added_tokens=True)
    added = backend.get_added_tokens_decoder()
    specials = {token.content: number for number, token in sorted(added.items()) if token.special}
    model = plain["model"]
    unknown = model["unk_id"] if "unk_id" in model else vocabulary.get(model.get("unk_token") or "")
    pad = vocabulary.get(_pad_token(folder, shown) or "")
    return TextTokenizer(backend, size, specials, unknown, pad, shown, size if silent else None)


def round_trip(tokenizer: TextTokenizer, text: str) -> str:
    """``text`` as it comes back from its ids: what a model could at best give."""
    return tokenizer.decode(tokenizer.encode([text])[0])


def cut_at_end(ids: np.ndarray, end_id: int) -> np.ndarray:
    """``ids`` up to the first end mark, which is left out with everything after it."""
    marks = np.flatnonzero(np.asarray(ids) == end_id)
    return ids[: marks[0]] if marks.size else ids


def decode_texts(tokenizer: TextTokenizer, ids: Sequence[np.ndarray] | np.ndarray, end_id: int) -> list[str]:
    """Text of each row of tokenizer ids; from the first end mark on everything is padding."""
    return [tokenizer.decode(cut_at_end(np.asarray(row), end_id)) for row in ids]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What ``vocabulary.json`` says: the head's ids and the marks of the rows beside it.

    ``ids`` are the tokenizer ids in the order of their head ids (``used``), or None (``full``: the same ids).
    ``max_source`` is None where rows are plain text.
    """

    mode: Literal["full", "used"]
    size: int
    tokenizer_size: int
    ids: tuple[int, ...] | None
    unknown_id: int | None
    end_id: int
    pad_id: int
    end_token: str
    length: int
    max_source: int | None

    def to_head(self, ids: np.ndarray) -> np.ndarray:
        """Head ids (int64) of tokenizer ids; one that the head does not know becomes its unknown.

        Raises Failed for ids outside the tokenizer, and for unknown ones where the tokenizer has no unknown.
        """
        ids = np.asarray(ids, dtype=np.int64)
        _check(
            ids, self.tokenizer_size, f"the tokenizer has {self.tokenizer_size:,} (the head {self.size:,})"
        )
        if self.ids is None:
            return ids
        table = np.full(self.tokenizer_size, -1, dtype=np.int64)
        table[list(self.ids)] = np.arange(self.size)
        head = table[ids]
        if (head < 0).any():
            if self.unknown_id is None:
                raise Failed(
                    f"Token {int(ids[head < 0][0])} is not among the {self.size:,} the training split uses and the "
                    "tokenizer has no unknown token to stand for it; set tokenize.vocabulary to full."
                )
            head[head < 0] = table[self.unknown_id]
        return head

    def to_tokenizer(self, head_ids: np.ndarray) -> np.ndarray:
        """Tokenizer ids (int64) of head ids. Raises Failed for ids outside the head."""
        ids = np.asarray(head_ids, dtype=np.int64)
        _check(ids, self.size, f"the head has {self.size:,} (the tokenizer {self.tokenizer_size:,})")
        return ids if self.ids is None else np.asarray(self.ids, dtype=np.int64)[ids]

    def write(self, path: Path) -> None:
        """Write ``vocabulary.json``."""
        write_atomic(path, json.dumps(asdict(self), sort_keys=True) + "\n")

    @classmethod
    def read(cls, path: Path) -> "Vocabulary":
        """What ``write`` wrote. Raises Failed where fields are missing, extra or contradict each other."""
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            ids = plain.pop("ids")
            vocabulary = cls(ids=None if ids is None else tuple(ids), **plain)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise Failed(f"{path} is no vocabulary of this version: {error}. {_AGAIN}") from error
        known = vocabulary.tokenizer_size if vocabulary.ids is None else len(set(vocabulary.ids))
        if vocabulary.size != known or (vocabulary.ids or (0,)) != tuple(sorted(vocabulary.ids or (0,))):
            raise Failed(f"{path} says size {vocabulary.size}, but lists {known} ids in order. {_AGAIN}")
        return vocabulary


def full_vocabulary(tokenizer: TextTokenizer, settings: "Tokenize", *, pairs: bool) -> Vocabulary:
    """The vocabulary whose head knows the whole tokenizer. Raises Misconfigured for an unknown end mark."""
    end_id = tokenizer.end_id(settings.end_token)
    return Vocabulary(
        mode="full",
        size=tokenizer.size,
        tokenizer_size=tokenizer.size,
        ids=None,
        unknown_id=tokenizer.unknown_id,
        end_id=end_id,
        pad_id=end_id if tokenizer.pad_id is None else tokenizer.pad_id,
        end_token=settings.end_token,
        length=settings.length,
        max_source=settings.max_source if pairs else None,
    )


def _check(ids: np.ndarray, size: int, sizes: str) -> None:
    if ids.size and not (ids.min() >= 0 and ids.max() < size):
        wrong = int(ids[(ids < 0) | (ids >= size)][0])
        raise Failed(
            f"Token id {wrong} is outside: {sizes} entries, so ids run from 0 to {size - 1:,}. Use the tokens that the "
            "model was trained on."
        )


def _pad_token(folder: Path, shown: str) -> str | None:
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        path = folder / name
        if path.exists() and (token := _pad_token_in(path, shown)) is not None:
            return token
    return None


def _pad_token_in(path: Path, shown: str) -> str | None:
    where = f"{path.name} of the tokenizer {shown}"
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Failed(f"{where} cannot be read as JSON: {error}. Bring it whole, or take it away.") from error
    if not isinstance(plain, dict):
        raise Failed(
            f"{where} is not one JSON object, as save_pretrained writes it. Mend it, or take it away."
        )
    token: Any = plain.get("pad_token")
    text = token.get("content") if isinstance(token, dict) else token
    if token is not None and not isinstance(text, str):
        raise Failed(
            f"{where} says that pad_token is {json.dumps(token):.60}; it must be a string, an object whose "
            "content is one, or null. Mend it, or take the key away."
        )
    return text
