"""The ledger: operations of each artifact by hand, each counted once, and nothing made up."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from costly import MODEL, OBJECTIVE, ROWS, Costly, a_step, as_lines, card
from run_folder import key_of
from tokens import make_tokens

from elf.cache.manifest import Manifest
from elf.pipeline.descriptions import keep_description
from elf.pipeline.devices import FILE, Devices, note_devices, read_devices
from elf.stages.ledger import Ledger, Line, keep_ledger
from elf.stages.ledger_text import rows_of_ledger, sentences
from elf.stages.model.config import ObjectiveConfig, SamplerConfig
from elf.stages.model.flops import (
    distill_flops,
    forward_flops,
    sample_flops,
    step_flops,
    token_sample_flops,
    token_step_parts,
)
from elf.stages.model.token_config import TokenConfig, TokenSamplerConfig

ONE = forward_flops(MODEL, MODEL.length)
WORDS = [f"w{number}" for number in range(3, 10)]
BLOCK = 2 * (4 * 6 * 8 + 6 * 2 * 10) + 4 * 8 * 8
"""Of a layer of the encoder, for one of eight positions."""
ODE = SamplerConfig(method="ode", steps=3)


@pytest.fixture
def costly(tmp_path: Path) -> Costly:
    made = Costly(tmp_path / "store")
    made.tokens()
    made.encoder()
    made.latents()
    return made


def ledger(costly: Costly, *names: str) -> Ledger:
    return keep_ledger({name: costly.made[name] for name in names})


def line(found: Ledger, name: str) -> Line:
    return next(each for each in found.lines if each.name == name)


def parts(found: Ledger, name: str) -> dict[str, tuple[float, float, bool]]:
    return {part.name: (part.rows, part.flops, part.exact) for part in line(found, name).counted.parts}


def distil(costly: Costly, lines: list[dict[str, int]], *, steps: int, called: int) -> None:
    costly.add(
        "distill",
        "round",
        {"teacher": "train", "start": "train", "tokens": "tokens", "latents": "latents"},
        facts={"steps": steps, "tokens": 32, "teacher_rows": called},
        config={"batch": 4, "heldout": None},
        files={"model.json": card(), "metrics.jsonl": as_lines(lines)},
    )


def test_the_encoder_goes_over_every_position(costly: Costly) -> None:
    found = line(ledger(costly, "latents"), "latents")
    assert (found.flops, found.exact) == (ROWS * 8 * 3 * BLOCK, True)
    assert found.counted.tokens == ROWS * 8


def test_a_layer_below_the_last_costs_what_lies_under_it_and_views_of_pairs_their_own(tmp_path: Path) -> None:
    costly = Costly(tmp_path / "store")
    costly.tokens(source=3)
    costly.encoder()
    costly.latents(("condition", "target"), layer=1)
    found = line(ledger(costly, "latents"), "latents")
    short = 2 * (4 * 6 * 8 + 6 * 2 * 10) + 4 * 3 * 8
    assert found.flops == ROWS * (3 * short + 8 * BLOCK)
    assert found.counted.tokens == ROWS * 11


def test_rows_that_went_through_are_counted_and_draws_that_were_not_kept_are_marked(costly: Costly) -> None:
    costly.train([a_step(8, 24), a_step(0, 32)], steps=2)
    found = parts(ledger(costly, "train"), "train")
    heads = 7 * ONE.flow_head + 1 * ONE.decode_head
    assert found["gradient passes"] == (8, 3 * (8 * (ONE.trunk + ONE.attention) + heads), True)
    assert found["self-condition"] == (3.5, 3.5 * ONE.forward, False)
    assert set(found) == {"gradient passes", "self-condition"}


def test_counts_that_are_as_likely_come_to_what_a_plan_expects(costly: Costly) -> None:
    costly.train([a_step(8 * 8, 8 * 32)], steps=10)
    assert line(ledger(costly, "train"), "train").flops == pytest.approx(40 * step_flops(MODEL, OBJECTIVE, 8))
    called = 32 * 5 + 16  # five sub-steps on every denoise row, once more for every other one
    distil(costly, [a_step(8, 32, "rows", teacher_rows=called)], steps=10, called=called)
    expected = 40 * distill_flops(MODEL, OBJECTIVE, 8, teacher_steps=5)
    assert line(ledger(costly, "round"), "round").flops == pytest.approx(expected)


def test_a_share_of_all_or_none_is_no_guess(costly: Costly) -> None:
    always = ObjectiveConfig(self_condition=1.0)
    costly.train([a_step(8, 24)], steps=1, objective=always)
    found = parts(ledger(costly, "train"), "train")
    assert found["self-condition"] == (3, 3 * ONE.forward, True)
    never = ObjectiveConfig(self_condition=0.0)
    costly.train([a_step(8, 24)], steps=1, objective=never)
    found = parts(ledger(costly, "train"), "train")
    alone = forward_flops(MODEL, MODEL.length, self_condition=False)
    heads = 3 * alone.flow_head + alone.decode_head
    assert found == {"gradient passes": (4, 3 * (4 * (alone.trunk + alone.attention) + heads), True)}


def test_where_padding_does_not_count_the_rows_of_a_branch_are_a_guess(costly: Costly) -> None:
    costly.train([a_step(5, 15)], steps=1)
    rows, _, exact = parts(ledger(costly, "train"), "train")["gradient passes"]
    assert (rows, exact) == (4, False)


def test_measurements_go_through_with_both_sets_of_weights(costly: Costly) -> None:
    costly.tokens("heldout", rows=6)
    costly.train([{"heldout_loss": 1.0}, a_step(8, 24), {"heldout_loss": 1.0}], steps=1, heldout=True)
    rows, flops, exact = parts(ledger(costly, "train"), "train")["held-out"]
    assert (rows, exact) == (24, False)
    one_row = 1.4 * (ONE.trunk + ONE.attention) + 1.2 * ONE.flow_head + 0.2 * ONE.decode_head
    assert flops == pytest.approx(24 * one_row)


def test_an_encoder_beside_the_steps_is_counted_with_training(costly: Costly) -> None:
    train = costly.train([a_step(8, 24)], steps=1)
    encode = costly.root / "encode" / key_of("latents")
    keep_description(train.path, "latents", Manifest.from_json((encode / "manifest.json").read_bytes()))
    shutil.rmtree(encode)
    found = ledger(costly, "train")
    assert parts(found, "train")["encoder beside the steps"] == (4, 4 * 8 * 3 * BLOCK, True)
    assert "encode · latents (never stored)" not in [each.name for each in found.lines]


def test_the_teachers_calls_are_those_that_were_made(costly: Costly) -> None:
    costly.train([a_step(8, 24)], steps=1)
    distil(costly, [a_step(1, 3, "rows", teacher_rows=13)], steps=1, called=13)
    found = ledger(costly, "round")
    assert parts(found, "round")["teacher"] == (13, 13 * ONE.forward, True)
    assert parts(found, "round")["gradient passes"][2]
    assert [each.stage for each in found.lines].count("train") == 1
    assert found.tokens("train", "distill") == 64


def test_texts_cost_every_pass_that_guidance_asks_for(costly: Costly) -> None:
    costly.train([a_step(8, 24)], steps=1)
    costly.sample(ODE)
    found = line(ledger(costly, "sample"), "sample")
    assert (found.flops, found.exact) == (10 * sample_flops(MODEL, ODE, 8, conditioned=False), True)
    assert found.counted.tokens == 80
    costly.sample(ODE, trajectories=2)
    again = parts(ledger(costly, "sample"), "sample")["trajectories"]
    assert again[1] > 2 * sample_flops(MODEL, ODE, 8, conditioned=False)


def test_pairs_are_guided_twice_and_decoded_where_their_texts_are(tmp_path: Path) -> None:
    costly = Costly(tmp_path / "store")
    costly.tokens(source=3)
    costly.train([a_step(8, 24)], steps=1)
    guided = replace(ODE, input_guidance=2.0)
    costly.sample(guided, texts=1)
    found = line(ledger(costly, "sample"), "sample")
    whole = 3 * 2 * ONE.forward + ONE.trunk + ONE.attention + ONE.decode_head * 5 / 8
    assert found.flops == pytest.approx(whole)


def test_a_judge_reads_each_text_by_its_length(costly: Costly) -> None:
    costly.train([a_step(8, 24)], steps=1)
    costly.sample(ODE)
    costly.scores([5, 0, 1, 3])
    found = line(ledger(costly, "scores"), "scores")
    weights = 2 * (4 * 16 + 2 * 4 * 16) + 4 * 9
    assert found.flops == 2 * 8 * weights + 4 * 2 * 4 * (25 + 9)
    assert (found.counted.tokens, found.exact) == (9, False)


def test_what_does_not_tell_is_named_and_no_number(costly: Costly) -> None:
    costly.train([a_step(8, 24)], steps=1, model={"kind": "another network"})
    shutil.rmtree(costly.root / "fetch")
    found = ledger(costly, "train")
    assert line(found, "train").flops is None
    assert {each.name: each.counted.untold for each in found.untold} == {
        "encoder (not in this store)": "it left the store",
        "encode · latents": "its encoder left the store",
        "train": "its model.json describes no network whose operations are known here",
    }
    assert found.flops == 0
    *_, total = rows_of_ledger(found)
    assert total.operations.startswith("more than ~")
    assert any("train: operations not told" in sentence for sentence in sentences(found))


def test_weights_from_outside_do_not_say_what_they_cost(costly: Costly) -> None:
    costly.add("weights", "train")
    assert line(ledger(costly, "train"), "train").counted.untold == "its weights were trained elsewhere"
    said = list(sentences(ledger(costly, "train")))
    assert "train: imported weights; on how many tokens they were trained is not known." in said
    assert not any(each.startswith("Trained") for each in said)


def test_what_was_distilled_from_weights_from_outside_was_trained_here_alone(costly: Costly) -> None:
    costly.add("weights", "train", files={"model.json": card()})
    distil(costly, [a_step(1, 3, "rows", teacher_rows=13)], steps=1, called=13)
    found = ledger(costly, "round")
    assert "Trained here on 32 tokens, rows times their length: 32 in distillation." in list(sentences(found))
    plain = found.plain()
    assert (plain["trained_tokens"], plain["trained_tokens_untold"]) == (32, ["weights · start"])


def test_training_and_distillation_are_told_apart_and_together(costly: Costly) -> None:
    costly.train([a_step(8, 24)], steps=1)
    distil(costly, [a_step(1, 3, "rows", teacher_rows=13)], steps=1, called=13)
    said = list(sentences(ledger(costly, "round")))
    assert said[0] == (
        "Trained on 64 tokens, rows times their length: 32 in training and 32 in distillation."
    )


def test_several_runs_count_what_they_share_once(costly: Costly) -> None:
    costly.train([a_step(8, 24)], steps=1)
    alone = ledger(costly, "train")
    both = ledger(costly, "train", "latents")
    assert alone.flops == both.flops
    assert alone.seconds == both.seconds == 4


def test_seconds_are_told_by_device_where_it_was_noted(costly: Costly) -> None:
    train = costly.train([a_step(8, 24)], steps=1)
    assert ledger(costly, "train").device_seconds == {"cpu": 2, "": 2}
    gpus = Devices("cuda", "a GPU", 8, 8, 64)
    note_devices(train.path, gpus)
    note_devices(train.path, gpus)
    found = ledger(costly, "train")
    assert line(found, "train").devices == gpus
    assert found.device_seconds == {"cpu": 2, "": 1, "cuda": 8}
    assert "On 8 × a GPU: train." in list(sentences(found))
    note_devices(train.path, Devices("cuda", "another", 1, 1, 64))
    assert len(read_devices(train.path)) == 2
    assert line(ledger(costly, "train"), "train").device_seconds is None


def test_a_damaged_note_of_devices_is_none(costly: Costly) -> None:
    train = costly.train([a_step(8, 24)], steps=1)
    for text in ("{", "[]\n", '{"kind": "cpu"}\n'):
        (train.path / "aux").mkdir(exist_ok=True)
        (train.path / FILE).write_text(text)
        assert read_devices(train.path) == ()


def test_the_plain_form_adds_up(costly: Costly) -> None:
    costly.train([a_step(8, 24)], steps=1, objective=OBJECTIVE)
    plain = ledger(costly, "train").plain()
    assert plain["flops"] == sum(each["flops"] for each in plain["lines"])
    for each in plain["lines"]:
        assert each["flops"] == sum(part["flops"] for part in each["parts"])
    assert not plain["flops_exact"]


@pytest.mark.parametrize("method", ["autoregressive", "masked"])
def test_a_baseline_has_its_blocks_on_every_row_and_its_head_on_what_is_asked_for(
    costly: Costly, method: Any
) -> None:
    model = TokenConfig(method=method, vocabulary=50, length=8, hidden=12, depth=2, heads=2)
    written = {"model.json": json.dumps({"method": method, "model": asdict(model)})}
    costly.add(
        "train",
        "train",
        {"tokens": "tokens"},
        facts={"steps": 2, "tokens": 64},
        config={"batch": 4, "heldout": None},
        files=written | {"metrics.jsonl": as_lines([{"positions": 32}, {"positions": 32}])},
    )
    rows, flops, exact = parts(ledger(costly, "train"), "train")["gradient passes"]
    assert (rows, exact) == (8, method == "autoregressive")
    assert flops == pytest.approx(8 * sum(token_step_parts(model, 8)))
    sampler = TokenSamplerConfig(method, steps=4 if method == "masked" else None)
    told = {name: value for name, value in asdict(sampler).items() if value is not None}
    costly.add(
        "sample",
        "sample",
        {"model": "train", "tokens": "tokens"},
        facts={"texts": 10},
        files={"settings.json": json.dumps({**told, "count": 10})},
    )
    found = line(ledger(costly, "sample"), "sample")
    assert (found.flops, found.exact) == (10 * token_sample_flops(model, sampler, 8), False)


def test_a_masked_model_is_asked_for_what_its_conditions_leave(tmp_path: Path) -> None:
    """Sources of one and of three tokens, in rows of eight: seven and five places are unmasked."""
    model = TokenConfig(method="masked", vocabulary=50, length=8, hidden=12, depth=2, heads=2)
    pairs = [("w3", "w4"), ("w3 w4 w5", "w6")]
    costly = Costly(tmp_path / "store")
    folder = make_tokens(tmp_path / "made", pairs, words=WORDS, length=8, max_source=4)
    costly.tokens(source=4, files=folder)
    costly.add(
        "train", "train", files={"model.json": json.dumps({"method": "masked", "model": asdict(model)})}
    )
    sampler = TokenSamplerConfig("masked", steps=16)
    costly.add(
        "sample",
        "sample",
        {"model": "train", "tokens": "tokens"},
        facts={"texts": 10},
        files={"settings.json": json.dumps({**asdict(sampler), "count": 10})},
    )
    found = line(ledger(costly, "sample"), "sample")
    assert found.flops == pytest.approx(10 * token_sample_flops(model, sampler, 8, given=2))
    assert (found.flops or 0.0) < 0.8 * 10 * token_sample_flops(model, sampler, 8)
