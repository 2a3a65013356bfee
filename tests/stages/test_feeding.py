"""What steps are fed: the same rows and numbers whoever makes them, whenever, with however many others."""

import os
import subprocess
from dataclasses import fields, replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest
import torch
from toy_training import SMALL, Corpus

from elf.stages.feeding import Fed, Feed, Recipe
from elf.stages.latents import open_latents
from elf.stages.model.config import ObjectiveConfig
from elf.stages.train_settings import Latents

BATCH = 6
EPOCH = 23


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    inputs = Corpus.make(tmp_path, replace(SMALL, max_source=3)).inputs
    latents = open_latents(inputs["tokens"], inputs["latents"], Latents(std="measured"), drops=True)
    objective = ObjectiveConfig(condition_dropout=0.5, padding="eos")
    return Recipe(latents, 3, BATCH, range(BATCH), objective, torch.device("cpu"))


def taken(recipe: Recipe, steps: range) -> list[tuple[Fed, torch.Tensor]]:
    """All that is fed, with the states copied out of their buffers."""
    with Feed(recipe, steps) as feed:
        return [(fed, fed.raw.states_BLD.clone()) for fed in feed]


def test_each_row_comes_once_an_epoch_across_batches(recipe: Recipe) -> None:
    rows = np.concatenate([fed.rows for fed, _ in taken(recipe, range(12))])
    for epoch in range(3):
        assert sorted(rows[epoch * EPOCH : (epoch + 1) * EPOCH].tolist()) == list(range(EPOCH))
    assert rows[:EPOCH].tolist() != rows[EPOCH : 2 * EPOCH].tolist()


def test_going_on_at_a_step_is_having_come_to_it(recipe: Recipe) -> None:
    whole, rest = taken(recipe, range(9)), taken(recipe, range(5, 9))
    for (one, states), (two, again) in zip(whole[5:], rest, strict=True):
        assert one.step == two.step
        assert one.rows.tolist() == two.rows.tolist()
        torch.testing.assert_close(states, again, rtol=0, atol=0)
        torch.testing.assert_close(one.draws.noise_BLD, two.draws.noise_BLD, rtol=0, atol=0)
        torch.testing.assert_close(one.draws.t_B, two.draws.t_B, rtol=0, atol=0)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_processes_share_what_one_would_have(recipe: Recipe, ranks: int) -> None:
    alone = taken(recipe, range(3))
    places = [range(rank * BATCH // ranks, (rank + 1) * BATCH // ranks) for rank in range(ranks)]
    shares = [taken(replace(recipe, places=each), range(3)) for each in places]
    for step, (fed, states) in enumerate(alone):
        parts = [share[step] for share in shares]
        torch.testing.assert_close(torch.cat([part for _, part in parts]), states, rtol=0, atol=0)
        for name in ("noise_BLD", "t_B", "decode_B", "coin_B", "drop_B", "guidance_B", "decode_t_BL"):
            joined = torch.cat([getattr(part.draws, name) for part, _ in parts])
            torch.testing.assert_close(joined, getattr(fed.draws, name), rtol=0, atol=0)
        assert all(part.rows.tolist() == fed.rows.tolist() for part, _ in parts)
        noises = [part.draws.noise_BLD.sum().item() for part, _ in parts]
        assert len(set(noises)) == ranks, "no two processes draw the same"


def test_one_row_twice_in_a_batch_gets_two_draws(recipe: Recipe) -> None:
    wide = replace(recipe, batch=2 * EPOCH, places=range(2 * EPOCH))
    ((fed, _),) = taken(wide, range(1))
    one, two = np.flatnonzero(fed.rows == 7).tolist()
    assert not torch.equal(fed.draws.noise_BLD[one], fed.draws.noise_BLD[two])


def test_dropped_rows_are_read_from_their_view(recipe: Recipe) -> None:
    shifted = [
        (state[int(fed.raw.condition_length_B[place]) :].float().mean() > 50) == fed.draws.drop_B[place]
        for fed, states in taken(recipe, range(4))
        for place, state in enumerate(states)
    ]
    assert all(shifted)
    assert len(shifted) == 24


def test_an_error_comes_where_its_step_would_have(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    read = type(recipe.latents).read

    def fail(self, rows, dropped, out):
        if rows.tolist() == recipe.rows(2).tolist():
            raise OSError("the disk is gone")
        return read(self, rows, dropped, out)

    monkeypatch.setattr(type(recipe.latents), "read", fail)
    seen: list[int] = []
    with pytest.raises(OSError, match="the disk is gone"), Feed(recipe, range(5)) as feed:
        seen.extend(fed.step for fed in feed)
    assert seen == [0, 1]


def test_leaving_early_ends_the_thread(recipe: Recipe) -> None:
    feed = Feed(recipe, range(10**9))
    with feed as feeding:
        assert next(feeding).step == 0
    assert not feed._thread.is_alive()


def test_what_is_fed_crosses_no_process_and_holds_no_mask(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made in a thread, and lengths are all that tells of who sees whom."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    for owner, name in ((os, "fork"), (BaseProcess, "start"), (subprocess, "Popen")):
        monkeypatch.setattr(owner, name, refuse)
    for fed, _ in taken(recipe, range(3)):
        given = [getattr(each, field.name) for each in (fed.raw, fed.draws) for field in fields(each)]
        tensors = [each for each in given if isinstance(each, torch.Tensor)]
        assert len(tensors) > 8
        assert not any(list(each.shape).count(SMALL.length) > 1 for each in tensors)
        assert fed.raw.condition_length_B.shape == fed.raw.length_B.shape == (BATCH,)
