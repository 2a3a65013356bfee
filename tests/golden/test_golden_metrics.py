"""BLEU, ROUGE and the judge against what the authors' PyTorch program recorded.

That program weights tokens between the first and second end mark twice and counts the padding's first end mark;
ours counts each token once and no padding, so perplexities are compared where the two rules agree.
"""

import math
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from elf.stages.judge import Judge
from elf.stages.overlap import ROUGE_KINDS, score_overlap
from elf.stages.protocol import Tokens, counted_tokens
from elf.stages.texts import Text
from tests.golden.conftest import Goldens

CASE = "metrics/ppl"
OVERLAP = "metrics/text"


@pytest.fixture(scope="module")
def judge(goldens: Goldens) -> Judge:
    case: dict[str, Any] | None = goldens.index["cases"].get(CASE)
    if case is None:
        pytest.skip("no judge recorded")
    model = GPT2LMHeadModel(GPT2Config(**case["gpt2_config"]))
    weights = goldens.part(case["file"], "w/")
    missing, unknown = model.load_state_dict(weights, strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not unknown
    model.tie_weights()
    return Judge(model.eval(), None, window=32, end_ids=frozenset({case["eos_id"]}))


@pytest.fixture(scope="module")
def texts(goldens: Goldens, judge: Judge) -> list[Tokens]:
    inputs = goldens.part(goldens.index["cases"][CASE]["file"], "in/")
    pairs = zip(inputs["ids"], inputs["attention_mask"].bool(), strict=True)
    return [Tokens(tuple(ids[mask].tolist()), False) for ids, mask in pairs]


def test_overlap(goldens: Goldens) -> None:
    """Scores of all texts together and of each alone, and the errors over texts."""
    case: dict[str, Any] | None = goldens.index["cases"].get(OVERLAP)
    if case is None:
        pytest.skip("no texts recorded")
    pairs = zip(case["hypotheses"], case["references"], strict=True)
    texts = [Text(i, 0, text, reference=reference) for i, (text, reference) in enumerate(pairs)]
    whole, alone = score_overlap([texts]), [score_overlap([[text]]) for text in texts]
    assert whole["bleu"].estimate.value == pytest.approx(case["bleu"], rel=1e-9)
    assert [each["bleu"].estimate.value for each in alone] == pytest.approx(case["bleu_single"], rel=1e-9)
    for ours, theirs in ROUGE_KINDS.items():
        found = whole[ours].estimate
        assert found.value == pytest.approx(case[theirs], rel=1e-9)
        assert found.se_item == pytest.approx(case[f"{theirs}_sem"], rel=1e-9)
        singles = [single[theirs] for single in case["rouge_single"]]
        assert [each[ours].estimate.value for each in alone] == pytest.approx(singles, rel=1e-9)


def test_nlls(goldens: Goldens, judge: Judge, texts: list[Tokens]):
    recorded = goldens.part(goldens.index["cases"][CASE]["file"], "out/")["nlls"]
    for ours, row in zip(judge.token_nlls([text.ids for text in texts]), recorded, strict=True):
        torch.testing.assert_close(ours, row[: len(ours)], rtol=2e-5, atol=2e-5)


def test_weights_are_the_recorded_ones_each_token_once(goldens: Goldens, judge: Judge, texts: list[Tokens]):
    recorded = goldens.part(goldens.index["cases"][CASE]["file"], "out/")["weights"]
    for text, row in zip(texts, recorded, strict=True):
        ours = counted_tokens(text.ids, judge.end_ids)[1:]
        assert ours == [bool(weight) for weight in row[: len(ours)]]


def test_perplexity_where_the_rules_agree(goldens: Goldens, judge: Judge, texts: list[Tokens]):
    case: dict[str, Any] = goldens.index["cases"][CASE]
    recorded = goldens.part(case["file"], "out/")["weights"]
    scored, compared = judge.score(texts), 0
    for i, text in enumerate(texts):
        doubled, padded = bool((recorded[i] > 1).any()), len(text.ids) < recorded.shape[1] + 1
        if not doubled and not padded:
            ppl = math.exp(scored[i].nll / scored[i].counted)
            assert ppl == pytest.approx(case["per_sample_ppl"][i], rel=2e-5)
            compared += 1
    if not compared:
        pytest.skip("the rules agree on no recorded text")


def test_perplexity_by_the_recorded_nlls_under_our_rule(goldens: Goldens, judge: Judge, texts: list[Tokens]):
    nlls = goldens.part(goldens.index["cases"][CASE]["file"], "out/")["nlls"].double()
    for item, text, row in zip(judge.score(texts), texts, nlls, strict=True):
        counts = torch.tensor(counted_tokens(text.ids, judge.end_ids)[1:])
        assert item.nll == pytest.approx(float(row[: len(counts)][counts].sum()), rel=2e-5)
        assert item.counted == int(counts.sum())


def test_entropies(goldens: Goldens, judge: Judge, texts: list[Tokens]):
    case: dict[str, Any] = goldens.index["cases"][CASE]
    ours = [item.entropy for item in judge.score(texts)]
    assert ours == pytest.approx(case["per_sample_entropy"], rel=1e-6)
    assert sum(filter(None, ours)) / len(ours) == pytest.approx(case["result"]["mean_entropy"], rel=1e-6)
