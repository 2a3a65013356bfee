"""What a row of the score table says beside its numbers."""

from typing import Any

import pytest
from run_folder import made_up_metrics

from elf.stages.scoretable import describe_settings, make_tables

SDE = {
    "method": "sde", "steps": 16, "guidance": 2.0, "gamma": 1.5, "input_guidance": 1.0, "weights": "ema",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "SDE · 16 steps · ω 2 · γ 1.5 · EMA weights"),
        ({"grid": "uniform"}, "SDE · 16 steps · uniform grid · ω 2 · γ 1.5 · EMA weights"),
        ({"sde_form": "variance_matched"}, "SDE · 16 steps · ω 2 · γ 1.5 · variance matched form · EMA weights"),
        ({"method": "ode", "input_guidance": 2.0, "weights": "raw"}, "ODE · 16 steps · ω 2 · w 2 · raw weights"),
        ({"precision": "bf16"}, "SDE · 16 steps · ω 2 · γ 1.5 · bf16 · EMA weights"),
    ],
)  # fmt: skip
def test_settings_in_words_tell_what_is_not_usual(changes: dict[str, Any], said: str):
    assert describe_settings(SDE | changes) == said


def test_rows_without_a_score_say_why():
    earlier = made_up_metrics(40.0, settings=SDE)
    del earlier["scores"]["self_bleu"]
    (table,) = make_tables({"ode": earlier}, {})
    cells = dict(zip(table.heads, table.rows[0].cells, strict=True))
    assert cells["Self‑BLEU"].text == "–"
    assert "earlier version" in cells["Self‑BLEU"].reason


def test_tables_of_pairs_name_what_computed_their_scores():
    metrics = made_up_metrics(40.0, settings=SDE)
    score = {"value": 12.0, "se_seed": None, "se_item": 0.5, "interval": [11, 13], "n": 64, "seeds": 1}
    metrics["scores"] |= {
        name: {**score, "signature": f"signature of {name}"} for name in ("bleu", "bleu_cased", "rouge_1")
    }
    (table,) = make_tables({"ode": metrics}, {"real": made_up_metrics(20.0)})
    assert table.signatures["BLEU"] == "signature of bleu"
    assert table.signatures["ROUGE‑1"] == "signature of rouge_1"
    real = dict(zip(table.heads, table.rows[1].cells, strict=True))
    assert (real["BLEU"].text, real["BLEU"].reason) == ("–", "these texts have no references")
