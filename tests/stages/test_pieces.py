"""A step in pieces: the same mean and gradients however it is cut, and the mean of groups where one is asked for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy_training import SMALL, TRAIN, Corpus, Size, flat

from elf.pipeline.progress import LineProgress
from elf.pipeline.stage import Compute, StageContext
from elf.stages import train
from elf.stages.feeding import Fed, Recipe
from elf.stages.latents import open_latents
from elf.stages.model.config import ModelConfig, ObjectiveConfig
from elf.stages.model.draws import draw
from elf.stages.model.network import Network, build
from elf.stages.objectives import Objective
from elf.stages.pieces import Pieces
from elf.stages.team import Team
from elf.stages.train_settings import Train
from elf.stages.training_metrics import read_metrics

BATCH = 12
PAIRS = Size(max_source=3)
OBJECTIVE = ObjectiveConfig(condition_dropout=0.3, padding="pad", decode_share=0.4)


@pytest.fixture(scope="module")
def team() -> Team:
    return Team(Compute(device="cpu", threads=1))


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    inputs = Corpus.make(tmp_path_factory.mktemp("pairs"), PAIRS).inputs
    section = Train.model_validate(TRAIN)
    latents = open_latents(inputs["tokens"], inputs["latents"], section.latents, drops=True)
    return Recipe(latents, 3, BATCH, range(BATCH), OBJECTIVE, torch.device("cpu"))


@pytest.fixture
def network() -> Network:
    shape = ModelConfig(
        width=SMALL.width,
        vocabulary=SMALL.vocabulary,
        length=SMALL.length,
        depth=1,
        hidden=16,
        heads=2,
        bottleneck=4,
    )
    network = build(shape, torch.Generator().manual_seed(1))
    with torch.no_grad():  # heads begin at zero, which would leave most gradients zero
        for number, parameter in enumerate(network.parameters()):
            parameter.add_(
                torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)) * 0.1
            )
    return network


def fed(recipe: Recipe, step: int = 4) -> Fed:
    return recipe.prepare(step, recipe.latents.make_buffer(BATCH))


def gradients(network: Network, make: Callable[[Objective], Any]) -> dict[str, torch.Tensor]:
    network.zero_grad()
    make(Objective(network, OBJECTIVE, "float32"))
    return {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("at_once", [None, 1, 2, 5])
@pytest.mark.parametrize("groups", [1, 3, 12])
def test_the_gradient_is_that_of_the_mean_of_the_groups(
    recipe: Recipe, network: Network, team: Team, groups: int, at_once: int | None
) -> None:
    step = fed(recipe)
    pieces = Pieces(recipe.places, groups=groups, at_once=at_once, team=team)

    def whole(objective: Objective) -> None:
        measured = pieces.add_gradients(objective, step, recipe.latents.normalise, objective.units(step.raw))
        assert measured.error_B.shape == (BATCH,)

    def by_hand(objective: Objective) -> None:
        means: list[torch.Tensor] = []
        for group in range(groups):
            places = list(range(group, BATCH, groups))
            rows = recipe.rows(step.step)[places]
            drawn = draw(3, step.step, places, length=SMALL.length, width=SMALL.width, objective=OBJECTIVE)
            raw = recipe.latents.read(rows, drawn.drop_B, recipe.latents.make_buffer(len(places)))
            means.append(objective(recipe.latents.normalise(raw, team.device), drawn).total)
        torch.stack(means).mean().backward()

    wanted, found = gradients(network, by_hand), gradients(network, whole)
    assert wanted.keys() == found.keys()
    largest = max(float(each.abs().max()) for each in wanted.values())
    for name, each in wanted.items():
        torch.testing.assert_close(found[name], each, rtol=1e-4, atol=1e-6 * largest, msg=name)


def test_groups_of_unlike_lengths_have_another_mean(recipe: Recipe, network: Network, team: Team) -> None:
    """Else the test above could not tell one mean from the other."""
    step = fed(recipe)
    found = [
        gradients(
            network,
            lambda objective, groups=groups: Pieces(
                recipe.places, groups=groups, at_once=None, team=team
            ).add_gradients(objective, step, recipe.latents.normalise, objective.units(step.raw)),
        )
        for groups in (1, 12)
    ]
    assert any(
        (one - other).abs().max() > 1e-3 * one.abs().max()
        for one, other in zip(*map(dict.values, found), strict=True)
    )


@given(
    batch=st.integers(1, 40),
    ranks=st.integers(1, 5),
    groups=st.integers(1, 8),
    at_once=st.none() | st.integers(1, 9),
)
def test_every_row_is_in_one_piece_of_its_group(
    batch: int, ranks: int, groups: int, at_once: int | None, team: Team
) -> None:
    if batch < ranks:
        return
    for rank in range(ranks):
        places = range(rank * batch // ranks, (rank + 1) * batch // ranks)
        pieces = Pieces(places, groups=groups, at_once=at_once, team=team).pieces
        assert sorted(place for piece in pieces for place in places[piece.chosen]) == list(places)
        assert all(place % groups == piece.group for piece in pieces for place in places[piece.chosen])
        assert all(1 <= len(places[piece.chosen]) <= (at_once or batch) for piece in pieces)
        assert [piece.last for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def test_draws_of_some_rows_are_theirs(recipe: Recipe) -> None:
    drawn = recipe.draws(2, range(BATCH))
    some, all_of_them = drawn.take(slice(1, None, 3)), drawn.take(slice(0, BATCH))
    assert some.t_B.tolist() == drawn.t_B[1::3].tolist()
    assert some.decode_noise_BLD is some.noise_BLD
    assert all_of_them.dropout_seed == drawn.dropout_seed != some.dropout_seed


def trained(corpus: Corpus, out: Path, settings: dict[str, Any], **compute: Any) -> list[dict[str, Any]]:
    out.mkdir()
    section = Train.model_validate_json(json.dumps({**TRAIN, **settings}))
    setup = Compute(device="cpu", threads=1, **compute)
    train.run(section, StageContext(out, corpus.inputs, setup, LineProgress(every=1e9)))
    return list(read_metrics(out / "metrics.jsonl"))


def test_rows_at_once_change_rounding_and_nothing_else(tmp_path: Path) -> None:
    corpus = Corpus.make(tmp_path / "corpus", PAIRS, heldout=Size(rows=9, max_source=3))
    settings = {"steps": 12, "optim": {**TRAIN["optim"], "lr": 0.003}, "heldout": {"every": 6, "rows": 9}}
    whole = trained(corpus, tmp_path / "whole", settings)
    for line, other in zip(whole, trained(corpus, tmp_path / "two", settings, batch=2), strict=True):
        assert flat(other) == pytest.approx(flat(line), rel=1e-4)


def test_accumulation_leaves_rows_and_learning_rate_of_a_step_alone(tmp_path: Path) -> None:
    corpus = Corpus.make(tmp_path / "corpus", PAIRS)
    settings = {"batch": 12, "steps": 8, "objective": {"padding": "pad"}}
    plain = trained(corpus, tmp_path / "plain", settings)
    four = trained(corpus, tmp_path / "four", {**settings, "accumulate": 4})
    same = ("step", "lr", "decode_positions", "denoise_positions")
    assert [[line[name] for name in same] for line in plain] == [
        [line[name] for name in same] for line in four
    ]
    assert plain[0]["loss"] == pytest.approx(four[0]["loss"], rel=1e-5)
    assert plain[-1]["loss"] != pytest.approx(four[-1]["loss"], rel=1e-5)


def test_a_batch_is_dealt_evenly() -> None:
    with pytest.raises(
        ValueError, match=r"`batch` \(6 rows\) must be a multiple of `accumulate` \(4 groups\)"
    ):
        Train.model_validate({**TRAIN, "accumulate": 4})
