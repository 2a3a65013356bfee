"""Training a unigram tokenizer so that equal texts give equal bytes (the trainer of ``tokenizers`` does not).

Hard expectation maximisation (Kudo 2018, with the best segmentation in place of all): from many candidate pieces,
segment every word, count, keep the pieces that are used most, and repeat until ``size`` are left. Counts are whole
numbers and words come in alphabetical order, so nothing depends on an order of summation.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from elf.pipeline.errors import Misconfigured

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
MARKS = (PAD, END, UNKNOWN)
SENTINELS = tuple(f"<extra_id_{number}>" for number in reversed(range(100)))
SPACE = "▁"
LONGEST_PIECE = 16
COVERAGE = 0.9995
"""Share of all characters that have a piece of their own; the rest are unknown."""
_SEED_WORDS = 200_000
_SEEDS_PER_PIECE = 8
_KEPT_PER_ROUND = 0.75


def train_unigram(texts: Iterable[str], *, size: int) -> Tokenizer:
    """A tokenizer of at most ``size`` pieces (special tokens included) and 100 sentinels.

    Raises Misconfigured where ``size`` does not hold even the characters of the texts.
    """
    normalizer = make_normalizer()
    words: Counter[str] = Counter()
    for text in texts:
        words.update(normalizer.normalize_str(text).split(" "))
    words.pop("", None)
    ordered = {f"{SPACE}{word}": words[word] for word in sorted(words)}
    scores = _prune(ordered, _characters(ordered, size), size - len(MARKS))
    return _assemble(scores)


def make_normalizer() -> normalizers.Normalizer:
    """Compatibility forms, and every stretch of white space one space, as T5's tokenizer has it."""
    folded = normalizers.Replace(Regex(r"\s+"), " ")
    return normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), folded, normalizers.Strip()])


def _characters(words: Mapping[str, int], size: int) -> set[str]:
    """The most frequent characters that cover the text; every one of them stays a piece."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    kept: set[str] = set()
    left = counts.total() * (1 - COVERAGE)
    for character, count in sorted(counts.items(), key=lambda item: (item[1], item[0])):
        left -= count
        if left < 0:
            kept.add(character)
    if len(kept) + len(MARKS) > size:
        raise Misconfigured(
            f"tokenize.subwords.size is {size}, but the text has {len(kept)} characters in frequent use and there are "
            f"{len(MARKS)} special tokens; raise it."
        )
    return kept


def _prune(words: Mapping[str, int], characters: set[str], wanted: int) -> dict[str, float]:
    """Pieces and their log probabilities, ``wanted`` of them or fewer where the text has no more."""
    counts = _seeds(words, characters, wanted)
    while True:
        for _ in range(2):
            counts = _segment(words, _log_shares(counts))
        if len(counts) <= wanted:
            return _log_shares(counts)
        room = max(wanted, int(_KEPT_PER_ROUND * len(counts))) - len(characters)
        long = [piece for piece in counts if piece not in characters]
        long.sort(key=lambda piece: (-counts[piece] * (len(piece) - 1), piece))
        kept = characters | set(long[:room])
        counts = {piece: count for piece, count in counts.items() if piece in kept}


def _seeds(words: Mapping[str, int], characters: set[str], wanted: int) -> dict[str, int]:
    """Characters, and the substrings of frequent words that cover most text; counts are occurrences."""
    frequent = sorted(words, key=lambda word: (-words[word], word))[:_SEED_WORDS]
    found: Counter[str] = Counter()
    for word in frequent:
        count = words[word]
        for start in range(len(word)):
            for stop in range(start + 1, min(start + LONGEST_PIECE, len(word)) + 1):
                found[word[start:stop]] += count
    pieces = [
        piece
        for piece, count in found.items()
        if count > 1 and len(piece) > 1 and characters.issuperset(piece) and _one_kind(piece)
    ]
    pieces.sort(key=lambda piece: (-found[piece] * len(piece), piece))
    single = {character: max(found[character], 1) for character in sorted(characters)}
    return single | {piece: found[piece] for piece in pieces[: _SEEDS_PER_PIECE * wanted]}


def _one_kind(piece: str) -> bool:
    """Whether a piece is a word's beginning or inside, of letters and digits only or of none."""
    inside = piece.removeprefix(SPACE)
    return SPACE not in inside and (inside.isalnum() or not any(map(str.isalnum, inside)))


def _segment(words: Mapping[str, int], scores: Mapping[str, float]) -> dict[str, int]:
    """How often each piece stands in the best segmentations of all words."""
    model = models.Unigram([(UNKNOWN, 0.0), *scores.items()], 0, False)
    counts = [0] * (len(scores) + 1)
    for word, count in words.items():
        for token in model.tokenize(word):
            counts[token.id] += count
    return dict(zip(scores, counts[1:], strict=True))


def _log_shares(counts: Mapping[str, int]) -> dict[str, float]:
    """Log share of each piece, an unused one counted as half an occurrence; most frequent first."""
    total = sum(counts.values()) + len(counts)
    ordered = sorted(counts, key=lambda piece: (-counts[piece], piece))
    return {piece: math.log(max(counts[piece], 0.5) / total) for piece in ordered}


def _assemble(scores: Mapping[str, float]) -> Tokenizer:
    pieces = [*((mark, 0.0) for mark in MARKS), *scores.items()]
    tokenizer = Tokenizer(models.Unigram(pieces, MARKS.index(UNKNOWN), False))
    tokenizer.normalizer = make_normalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = [AddedToken(token, normalized=False, special=True) for token in (*MARKS, *SENTINELS)]
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", pair=f"$A {END} $B {END}", special_tokens=[(END, MARKS.index(END))]
    )
    return tokenizer
