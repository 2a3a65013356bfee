"""States that the encoder makes as they are wanted are those a store of the same key would hold."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toy_encoders import WORDS, pairs, texts
from toy_sources import Split, make_split
from transformers import T5EncoderModel

from elf.pipeline.errors import Failed, Misconfigured
from elf.stages.feeding import Feed, Recipe
from elf.stages.latents import LatentRows, Scale, moments_in, open_latents
from elf.stages.live import LiveStates, open_live
from elf.stages.model.config import ObjectiveConfig
from elf.stages.states import Stopped
from elf.stages.train_settings import Latents

CPU = torch.device("cpu")
UNIT = Scale(0.0, 1.0)
Opened = Callable[[Split, bool], LatentRows]


def stored(split: Split, drops: bool) -> LatentRows:
    return open_latents(split.case.tokens, split.stored, UNIT, drops=drops)


def live(split: Split, drops: bool, settings: Latents | Scale = UNIT, **more: Any) -> LatentRows:
    return open_live(split.case.tokens, split.unbuilt, settings, drops=drops, device=CPU, **more)


def read(rows: LatentRows, wanted: list[int], dropped: list[bool]) -> torch.Tensor:
    buffer = rows.make_buffer(len(wanted) + 1)
    buffer[:] = 7
    raw = rows.read(np.array(wanted), torch.tensor(dropped), buffer)
    return raw.states_BLD.clone()


@pytest.fixture(scope="module")
def paired(tmp_path_factory: pytest.TempPathFactory) -> Split:
    return make_split(tmp_path_factory.mktemp("pairs"), pairs(12), max_source=6)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Split:
    return make_split(tmp_path_factory.mktemp("text"), texts(9))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_text_is_what_its_store_holds(tmp_path: Path, dtype: str) -> None:
    split = make_split(tmp_path, texts(6), dtype=dtype)
    rows = list(range(stored(split, False).rows))[::-1]
    none = [False] * len(rows)
    found, wanted = read(live(split, False), rows, none), read(stored(split, False), rows, none)
    assert found.dtype == wanted.dtype == getattr(torch, dtype)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_pairs_are_what_their_store_holds_dropped_and_kept(paired: Split) -> None:
    rows, dropped = [3, 11, 3, 0, 7], [False, True, True, False, True]
    found, wanted = read(live(paired, True), rows, dropped), read(stored(paired, True), rows, dropped)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert not torch.equal(found[0], found[2])


def test_how_many_rows_are_encoded_at_once_changes_nothing(paired: Split) -> None:
    rows, dropped = list(range(12)), [row % 3 == 0 for row in range(12)]
    whole = live(paired, True)
    little = live(paired, True)
    assert isinstance(little.states, LiveStates)
    object.__setattr__(little.states.making, "batch_tokens", 1)
    torch.testing.assert_close(read(whole, rows, dropped), read(little, rows, dropped), rtol=0, atol=0)


def test_the_same_encoder_is_named(plain: Split) -> None:
    one, two = live(plain, False), stored(plain, False)
    assert one.encoder == two.encoder
    assert (one.rows, one.length, one.width, one.dtype) == (two.rows, two.length, two.width, two.dtype)


# Case A03: what a draw of training decides is never baked into what is encoded.

SAME_TARGET = [("w1 w2 w3", "w9 w8"), ("w4 w5", "w9 w8"), ("w6", "w10 w11 w12"), ("w7 w1 w2 w3", "w13")]


@pytest.fixture(scope="module")
def same_target(tmp_path_factory: pytest.TempPathFactory) -> Split:
    return make_split(tmp_path_factory.mktemp("same"), SAME_TARGET, max_source=5)


def literally(model: T5EncoderModel, split: Split, row: int, dropped: bool) -> torch.Tensor:
    """States (L, D) of one row by transformers, under a mask written out query by query."""
    tokens = stored(split, False).tokens
    ids = torch.from_numpy(tokens.ids(np.array([row])).astype(np.int64))
    start, end = (int(each(np.array([row]))[0]) for each in (tokens.condition_lengths, tokens.lengths))
    length = ids.shape[1]
    sees = torch.zeros(length, length, dtype=torch.bool)
    for query in range(length):
        for key in range(end):
            if query < start:
                sees[query, key] = key < start
            else:
                sees[query, key] = key >= start or not dropped
    mask = torch.where(sees, 0.0, torch.finfo(torch.float32).min)[None, None]
    with torch.no_grad():
        states = model(input_ids=ids, attention_mask=mask).last_hidden_state[0]
    if dropped:
        states[:start] = 0
    return states


@pytest.mark.parametrize("opened", [stored, live], ids=["store", "live"])
def test_a_dropped_rows_target_never_saw_the_source(same_target: Split, opened: Opened) -> None:
    """What training is fed with label drop 0.5, against a fresh encode of each row under either mask."""
    model = T5EncoderModel.from_pretrained(same_target.case.encoder.path / "data").eval()
    fresh = {
        (row, dropped): literally(model, same_target, row, dropped)
        for row in range(4)
        for dropped in (False, True)
    }
    objective = ObjectiveConfig(condition_dropout=0.5, padding="eos")
    recipe = Recipe(opened(same_target, True), 3, 4, range(4), objective, CPU)
    seen: list[tuple[int, bool]] = []
    with Feed(recipe, range(8)) as feed:
        for fed in feed:
            for place, (row, dropped) in enumerate(
                zip(fed.rows.tolist(), fed.draws.drop_B.tolist(), strict=True)
            ):
                found = fed.raw.states_BLD[place].float()
                torch.testing.assert_close(found, fresh[row, dropped], rtol=2e-3, atol=2e-3)
                assert (found - fresh[row, not dropped]).abs().max() > 0.05, "the two kinds are told apart"
                seen.append((row, dropped))
    assert set(seen) == set(fresh), "each row comes with its condition and without"


@pytest.mark.parametrize("opened", [stored, live], ids=["store", "live"])
def test_one_target_under_two_sources_has_two_sets_of_latents(same_target: Split, opened: Opened) -> None:
    rows = opened(same_target, True)
    start = rows.tokens.condition_lengths(np.array([0, 1]))
    kept = read(rows, [0, 1], [False, False]).float()
    one, two = kept[0, start[0] : start[0] + 2], kept[1, start[1] : start[1] + 2]
    assert (one - two).abs().max() > 0.05
    dropped = read(rows, [0, 1], [True, True]).float()
    one, two = dropped[0, start[0] : start[0] + 2], dropped[1, start[1] : start[1] + 2]
    torch.testing.assert_close(one, two, rtol=2e-3, atol=2e-3)


def test_a_run_that_cannot_do_this_refuses_at_its_start(tmp_path: Path) -> None:
    views = ("condition", "target_given_condition")
    split = make_split(tmp_path, SAME_TARGET, max_source=5, views=views)
    assert read(live(split, False), [1], [False]).shape == (1, 16, 32)
    with pytest.raises(Misconfigured, match=r"needs 'target', as objective.condition_dropout is not 0"):
        live(split, True)
    with pytest.raises(Failed, match=r"no view 'target'"):
        stored(split, True)


# What a manifest would have said


def test_measured_needs_a_store(plain: Split) -> None:
    with pytest.raises(Misconfigured, match=r"std is measured, which takes mean and deviation of all rows"):
        live(plain, False, Latents(std="measured"))
    facts = plain.stored.manifest.facts
    scale = live(plain, False, Latents(std="measured"), stored=plain.stored).scale
    assert (scale.mean, scale.std) == (facts["mean"], facts["std"])


def test_a_scale_far_from_the_states_is_refused(plain: Split) -> None:
    mean, std = moments_in(plain.stored.manifest.facts)
    assert live(plain, False, Latents(mean=mean, std=std)).scale == Scale(mean, std)
    with pytest.raises(Failed, match=r"std 50, but 16 rows of the latents have mean"):
        live(plain, False, Latents(std=50.0))


def test_other_tokens_than_the_encoders_are_refused(plain: Split, paired: Split) -> None:
    with pytest.raises(Failed, match="to be made from tokens"):
        open_live(paired.case.tokens, plain.unbuilt, UNIT, drops=False, device=CPU)


def test_what_cannot_be_stored_is_not_trained_on(
    plain: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = live(plain, False)
    assert isinstance(rows.states, LiveStates)
    weights = rows.states.encoder
    hidden = weights._hidden
    third = torch.from_numpy(rows.tokens.ids(np.array([3])).astype(np.int64))[0]

    def broken(ids_BL: torch.Tensor, mask: torch.Tensor | None):
        for state in hidden(ids_BL, mask):
            yield torch.where((ids_BL == third).all(dim=1)[:, None, None], float("nan"), state)

    monkeypatch.setattr(weights, "_hidden", broken)
    with pytest.raises(
        Failed, match=r"^Row 3 cannot be stored \(view plain\): hidden layer 0 .*is not finite"
    ):
        read(rows, [1, 3, 2], [False] * 3)


def test_a_tokenizer_of_another_encoder_is_refused(plain: Split) -> None:
    path = plain.case.encoder.path / "data" / "tokenizer.json"
    text = path.read_text()
    try:
        path.write_text(text.replace(f'"{WORDS[-1]}"', '"The"'))
        with pytest.raises(Failed, match="not made with the encoder's tokenizer"):
            live(plain, False)
    finally:
        path.write_text(text)


def test_who_is_told_to_stop_stops_between_calls(plain: Split) -> None:
    rows = live(plain, False)
    rows.states.stop()
    with pytest.raises(Stopped):
        read(rows, [0], [False])
