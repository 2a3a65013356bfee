"""From what is known of each text to the scores of a set of texts, with their guards.

A Gen-PPL alone says nothing (sixty-four copies of one good sentence score well), so the scores come as one
object: perplexity, entropies, distinct-n, repeats, copies, empties, duplicates, the counts behind them, the
warnings, and the reasons for which the set is degenerate, if it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from elf.cache.manifest import JSON
from elf.stages.guards import mark
from elf.stages.intervals import FEW, Estimate, Items, estimate, standard_error
from elf.stages.protocol import Judged
from elf.stages.texts import Text
from elf.stages.textstats import count_repeats, distinct, find_duplicates, unigram_entropy, words_of

METRICS = "metrics.json"
PER_TEXT = "per_text.jsonl"
WORST_PPL = 300.0
"""A Gen-PPL above this is noise under any judge."""
REPEAT_SIZE = 4


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything counted in one text; `judged` is None without a judge, `copied` without a training text."""

    text: Text
    words: tuple[str, ...]
    repeated: tuple[int, int]
    copied: tuple[int, int] | None
    duplicate: bool
    entropy_ids: float | None
    judged: Judged | None


@dataclass(frozen=True, slots=True)
class Floor:
    """Entropy (nats, judge's ids or, without a judge, the run's own) below which a set is degenerate."""

    value: float
    origin: str


def library_versions() -> dict[str, JSON]:
    """Of what stands beside every score."""
    return {name: version(name) for name in ("torch", "transformers", "tokenizers")}


def measure(
    texts: Sequence[Text], copied: Sequence[tuple[int, int]] | None, judged: Sequence[Judged] | None
) -> list[Measured]:
    """Put together what is known per text, in the order of `texts`."""
    words = [tuple(words_of(text.text)) for text in texts]
    duplicates = find_duplicates(text.text for text in texts)
    return [
        Measured(
            text=text,
            words=words[i],
            repeated=count_repeats(words[i], REPEAT_SIZE),
            copied=copied[i] if copied is not None else None,
            duplicate=duplicates[i],
            entropy_ids=unigram_entropy(text.ids) if text.ids is not None else None,
            judged=judged[i] if judged is not None else None,
        )
        for i, text in enumerate(texts)
    ]


def assess(measured: Sequence[Measured], *, copy_ngram: int, floor: Floor | None) -> dict[str, Any]:
    """Scores with all that must stand beside them: ``scores``, ``counts``, ``entropy_floor``, ``degenerate`` (the
    reasons, if any) and ``warnings``."""
    scores, counts = score_table(measured, copy_ngram=copy_ngram), counts_of(measured)
    return {
        "scores": scores,
        "counts": counts,
        "entropy_floor": asdict(floor) if floor is not None else None,
        "degenerate": find_faults(scores, counts, floor),
        "warnings": find_warnings(scores, counts),
    }


def notes_of(assessed: Mapping[str, Any], *, control: bool = False) -> list[str]:
    """What ``assess`` warns of, in lines; ``control`` texts are no model's."""
    return [*assessed["warnings"], *(f"{mark(control=control)}: {fault}" for fault in assessed["degenerate"])]


def score_table(measured: Sequence[Measured], *, copy_ngram: int) -> dict[str, JSON]:
    """Every score by its name: value, SE_seed, SE_item, interval, n; or value null with the reason."""
    groups = by_seed(measured)
    readable = [[m for m in group if not m.text.empty] for group in groups]
    judged = [[m.judged for m in group if m.judged is not None] for group in readable]
    without = "no judge was named" if not any(judged) else "no text has a token that counts"
    ppl = estimate([_items([(j.nll, j.counted) for j in group]) for group in judged], exponential=True)
    entropy = estimate([_items([(j.entropy, 1) for j in group if j.entropy is not None]) for group in judged])
    own = estimate([_items([(m.entropy_ids, 1) for m in g if m.entropy_ids is not None]) for g in readable])
    repeats = estimate([_items([m.repeated for m in group]) for group in groups])
    copies = estimate([_items([m.copied for m in group if m.copied is not None]) for group in groups])
    short = "no text has as many words"
    unread = short if all(m.copied is not None for m in measured) else "no training text was named"
    return {
        "gen_ppl": _shown(ppl, without, weight="tokens"),
        "entropy": _shown(entropy, without),
        "entropy_ids": _shown(own, "the texts came without token ids"),
        "distinct_1": _distinct(groups, 1),
        "distinct_2": _distinct(groups, 2),
        "self_bleu": _self_bleu(groups),
        f"repeats_{REPEAT_SIZE}": _shown(repeats, short, weight="ngrams"),
        f"copy_{copy_ngram}": _shown(copies, unread, weight="ngrams"),
        "empty": _shown(estimate([_items([(m.text.empty, 1) for m in g]) for g in groups]), ""),
        "duplicates": _shown(estimate([_items([(m.duplicate, 1) for m in g]) for g in groups]), ""),
        **_overlap(groups),
    }


def counts_of(measured: Sequence[Measured]) -> dict[str, JSON]:
    """Counts behind the scores; those of the judge are there only with one."""
    counts: dict[str, JSON] = {
        "texts": len(measured),
        "seeds": len(by_seed(measured)),
        "empty": sum(m.text.empty for m in measured),
        "duplicates": sum(m.duplicate for m in measured),
        "words": sum(len(m.words) for m in measured),
    }
    judged = [m.judged for m in measured if m.judged is not None and not m.text.empty]
    if judged:
        counts |= {
            "judge_tokens": sum(j.tokens for j in judged),
            "scored_tokens": sum(j.counted for j in judged),
            "one_token": sum(j.tokens == 1 for j in judged),
            "over_window": sum(j.truncated for j in judged),
            "end_marks": sum(j.end_marks for j in judged),
        }
    texts = [item.text for item in measured]
    if _paired([texts]):
        from elf.stages.overlap import count_unscorable

        counts |= count_unscorable(texts)
    return counts


def find_faults(scores: Mapping[str, JSON], counts: Mapping[str, JSON], floor: Floor | None) -> list[str]:
    """Reasons for which this set of texts is degenerate: its Gen-PPL must not be read as quality."""
    faults: list[str] = []
    name = "entropy" if value_of(scores, "entropy") is not None else "entropy_ids"
    entropy, ppl = value_of(scores, name), value_of(scores, "gen_ppl")
    if counts["empty"] == counts["texts"]:
        faults.append("every text is empty")
    if entropy is not None and floor is not None and entropy < floor.value:
        faults.append(f"entropy {entropy:.2f} below {floor.value:.2f} ({floor.origin})")
    if ppl is not None and ppl > WORST_PPL:
        faults.append(f"Gen-PPL above {WORST_PPL:.0f}")
    return faults


def find_warnings(scores: Mapping[str, JSON], counts: Mapping[str, JSON]) -> list[str]:
    """Sentences to print beside the numbers."""
    texts, duplicates, empty = (counts[name] for name in ("texts", "duplicates", "empty"))
    assert isinstance(texts, int)
    warnings: list[str] = []
    if texts < FEW:
        warnings.append(f"{texts} texts: fewer than {FEW}, the numbers are rough")
    if duplicates:
        warnings.append(f"{duplicates} of {texts} texts word for word like an earlier one")
    if empty:
        warnings.append(f"{empty} of {texts} texts empty: without Gen-PPL and entropy")
    if over := counts.get("over_window"):
        warnings.append(f"{over} of {texts} texts longer than the judge's window, scored up to it")
    if counts.get("empty_references"):
        warnings.append(f"{counts['empty_references']} of {texts} references empty: nothing can match them")
    split = counts.get("texts_split_already", 0)
    assert isinstance(split, int)
    if 2 * split > texts:
        warnings.append(f"{split} of {texts} texts end in ' .': BLEU wants text that is not split into words")
    warnings += [
        f"{unread} of {texts} {side} without a word of a-z or 0-9: their ROUGE is 0"
        for side in ("texts", "references")
        if (unread := counts.get(f"{side}_without_rouge_words"))
    ]
    return warnings


def value_of(scores: Mapping[str, JSON], name: str) -> float | None:
    """The value of a score; None where it is absent."""
    score = scores.get(name)
    assert score is None or isinstance(score, Mapping)
    value = score["value"] if score else None
    assert value is None or isinstance(value, int | float)
    return value


def _overlap(groups: Sequence[Sequence[Measured]]) -> dict[str, JSON]:
    """BLEU and ROUGE of texts that come with references; without any there is nothing to compare."""
    texts = [[item.text for item in group] for group in groups]
    if not _paired(texts):
        return {}
    from elf.stages.overlap import score_overlap

    found = score_overlap(texts)
    return {
        name: {**_shown(score.estimate, ""), "signature": score.signature} for name, score in found.items()
    }


def _paired(groups: Sequence[Sequence[Text]]) -> bool:
    return any(text.reference is not None for group in groups for text in group)


def by_seed(measured: Sequence[Measured]) -> list[list[Measured]]:
    """Texts of each seed, seeds in order."""
    groups: dict[int, list[Measured]] = {}
    for item in measured:
        groups.setdefault(item.text.seed, []).append(item)
    return [groups[seed] for seed in sorted(groups)]


def _items(pairs: Sequence[tuple[float, float]]) -> Items:
    array = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return Items(array[:, 0], array[:, 1])


def _distinct(groups: Sequence[Sequence[Measured]], n: int) -> dict[str, JSON]:
    every = [distinct([m.words for m in group], n) for group in groups]
    return _over_seeds(every, "no text has as many words", sum(len(group) for group in groups))


def _self_bleu(groups: Sequence[Sequence[Measured]]) -> dict[str, JSON]:
    from elf.stages.selfbleu import self_bleu

    every = [self_bleu([m.words for m in group]) for group in groups]
    known = [score for score in every if score is not None]
    shown = _over_seeds(
        [score.value for score in known],
        "fewer than two texts with a word",
        sum(score.references + 1 for score in known),
    )
    return shown | ({"references": max(score.references for score in known)} if known else {})


def _over_seeds(every: Sequence[float | None], reason: str, n: int) -> dict[str, JSON]:
    """A score that is of all texts of a seed together. No error over items: drawing texts anew repeats some of them,
    which itself makes a seed less varied."""
    values = [value for value in every if value is not None]
    if not values:
        return {"value": None, "reason": reason}
    return {
        "value": float(np.mean(values)),
        "se_seed": standard_error(values),
        "se_item": None,
        "interval": None,
        "n": n,
        "seeds": len(values),
    }


def _shown(score: Estimate | None, reason: str, weight: str | None = None) -> dict[str, JSON]:
    if score is None:
        return {"value": None, "reason": reason}
    shown: dict[str, JSON] = {
        "value": score.value,
        "se_seed": score.se_seed,
        "se_item": score.se_item,
        "interval": list(score.interval) if score.interval is not None else None,
        "n": score.n,
        "seeds": score.seeds,
    }
    return shown | {weight: int(score.weight)} if weight is not None else shown
