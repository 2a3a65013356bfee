"""A baseline as the training loop takes it: rows of ids, a model of tokens, its loss."""

import torch

from elf.pipeline.stage import StageContext
from elf.stages.feeding import Recipe
from elf.stages.heldout import open_heldout
from elf.stages.model.flops import token_step_parts
from elf.stages.model.token_config import TokenMethod
from elf.stages.model.token_draws import draw_masks, draw_tokens
from elf.stages.model.token_network import build_tokens
from elf.stages.shapes import objective_config, token_config
from elf.stages.steps import training_length
from elf.stages.task import Task
from elf.stages.team import Team
from elf.stages.token_models import TokenCard
from elf.stages.token_objectives import NextToken, Unmasking
from elf.stages.train_settings import Train
from elf.stages.trained import vocabulary_digest
from elf.stages.training import speed_up
from elf.stages.training_inputs import open_id_splits

DRAWINGS = {"autoregressive": draw_tokens, "masked": draw_masks}
GOALS = {"autoregressive": NextToken, "masked": Unmasking}


def prepare_tokens(section: Train, method: TokenMethod, context: StageContext, team: Team) -> Task:
    """What is trained on, and the model that makes."""
    rows, validation = open_id_splits(context)
    vocabulary, objective = rows.tokens.vocabulary, objective_config(section.objective)
    model = token_config(section.model, method, vocabulary=vocabulary.size, length=rows.length)
    recipe = Recipe(
        rows,
        section.seed,
        section.batch,
        team.places(section.batch),
        objective,
        team.device,
        DRAWINGS[method],
    )
    network = build_tokens(model, torch.Generator().manual_seed(section.seed)).to(team.device)
    speed_up(network, context, team.device)
    return Task(
        name="train",
        card=TokenCard(model, objective.padding, vocabulary_digest(vocabulary)),
        network=network,
        objective=GOALS[method](network, objective, section.precision),
        recipe=recipe,
        length=training_length(section, rows.rows),
        row_flops=sum(token_step_parts(model, rows.length)),
        heldout=open_heldout(recipe, validation, section.heldout, team, at_once=context.compute.batch),
        shown=rows if validation is None else validation,
    )
