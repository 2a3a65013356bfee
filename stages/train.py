"""Stage train: stored latents in; a network that carries noise to them and reads tokens out of them. Or one of the
baselines, of tokens alone (``elf.stages.token_task``)."""

from collections.abc import Mapping

import torch

from elf.cache.manifest import JSON
from elf.pipeline.stage import StageContext
from elf.stages.feeding import Recipe
from elf.stages.heldout import open_heldout
from elf.stages.model.flops import step_flops
from elf.stages.model.network import build
from elf.stages.objectives import Objective
from elf.stages.steps import training_length
from elf.stages.stopping import StopWish
from elf.stages.task import Task
from elf.stages.team import Team
from elf.stages.token_task import prepare_tokens
from elf.stages.train_settings import Train
from elf.stages.training import learn, speed_up
from elf.stages.training_inputs import describe, open_id_splits, open_splits


def run(section: Train, context: StageContext) -> Mapping[str, JSON]:
    """Train a network from its first weights on; ``elf.stages.training.learn`` says what is written and raised.

    Raises Failed too where inputs do not fit each other or the settings.
    """
    with StopWish() as wish:
        team = Team(context.compute)
        facts = learn(prepare(section, context, team), section, context, team, wish)
        team.leave()
        return facts


def prepare(section: Train, context: StageContext, team: Team) -> Task:
    """What is trained on, and the model that makes."""
    if section.method != "flow":
        return prepare_tokens(section, section.method, context, team)
    drops = section.objective.condition_dropout > 0
    if section.embeddings is not None:
        latents, validation = open_id_splits(context)
    else:
        latents, validation = open_splits(section.latents, context, team.device, drops=drops)
    length = training_length(section, latents.rows)
    card = describe(section, latents)
    recipe = Recipe(
        latents,
        section.seed,
        section.batch,
        team.places(section.batch),
        card.objective,
        team.device,
        width=card.model.width,
    )
    network = build(card.model, torch.Generator().manual_seed(section.seed)).to(team.device)
    compiled = speed_up(network, context, team.device)
    return Task(
        name="train",
        card=card,
        network=network,
        objective=Objective(network, card.objective, section.precision, few_shapes=compiled),
        recipe=recipe,
        length=length,
        row_flops=step_flops(card.model, card.objective, card.model.length),
        heldout=open_heldout(recipe, validation, section.heldout, team, at_once=context.compute.batch),
        shown=latents if validation is None else validation,
    )
