"""What a training run is given: its splits, checked, and the description of the model that comes of them."""

from dataclasses import replace
from typing import Literal

import torch

from elf.cache.files import remove_tree
from elf.pipeline.errors import Failed
from elf.pipeline.stage import StageContext
from elf.stages.devices import choose_device
from elf.stages.feeding import Feed, Recipe
from elf.stages.latents import LatentRows, Scale, open_ids, open_latents, same_kind
from elf.stages.live import open_live
from elf.stages.rolling import RollingStates, Wanted
from elf.stages.shapes import model_config, objective_config
from elf.stages.sources import source_of, train_compute
from elf.stages.team import Team
from elf.stages.train_settings import Latents, Train
from elf.stages.trained import Card, vocabulary_digest

WINDOW = "window-"
"""Begins the name of a process's folder of states encoded ahead; they are gone before the run is finished."""


NOTES = {
    "live": "The encoder runs beside each step; no latents are stored.",
    "rolling": "The encoder runs ahead of the steps, into a window on the disk.",
}


def open_splits(
    settings: Latents | Scale, context: StageContext, device: torch.device, *, drops: bool
) -> tuple[LatentRows, LatentRows | None]:
    """The training split, and the held-out one where there is one; both normalised by the training split's scale.
    ``drops``: conditions are dropped.

    Training's states are the source's (a window is put before them by ``open_feed``), the held-out split's are a
    store's where there is one. Raises Failed, naming both values, where anything does not fit.
    """
    train = _open("", settings, context, device, drops=drops, stored=source_of(context) == "store")
    given = context.inputs.keys() | context.unbuilt.keys()
    if ("heldout_tokens" in given) != ("heldout_latents" in given):
        raise Failed(
            "A held-out split needs both inputs, heldout_tokens and heldout_latents; give it the missing one."
        )
    if "heldout_tokens" not in given:
        return train, None
    stored = "heldout_latents" in context.inputs
    heldout = _open("heldout_", train.scale, context, device, drops=drops, stored=stored)
    same_kind(train, heldout)
    return train, heldout


def open_id_splits(context: StageContext) -> tuple[LatentRows, LatentRows | None]:
    """The ids of the training split, and of the held-out one where there is one. Raises Failed where they do not fit
    each other."""
    train = open_ids(context.inputs["tokens"])
    if "heldout_tokens" not in context.inputs:
        return train, None
    heldout = open_ids(context.inputs["heldout_tokens"])
    same_kind(train, heldout)
    return train, heldout


def _open(
    split: Literal["", "heldout_"],
    settings: Latents | Scale,
    context: StageContext,
    device: torch.device,
    *,
    drops: bool,
    stored: bool,
) -> LatentRows:
    tokens, role = context.inputs[f"{split}tokens"], f"{split}latents"
    if stored:
        reader = train_compute(context.compute).reader
        return open_latents(tokens, context.inputs[role], settings, drops=drops, reader=reader)
    wanted = context.unbuilt[role].compute.device
    if source_of(context) == "rolling" and wanted not in ("auto", device.type):
        device = torch.device(choose_device(wanted))
    return open_live(
        tokens,
        context.unbuilt[role],
        settings,
        drops=drops,
        device=device,
        stored=context.inputs.get(role),
    )


def open_feed(recipe: Recipe, steps: range, context: StageContext, team: Team) -> Feed:
    """What feeds the steps; a window of an earlier try is gone by then, whatever the source is now."""
    if team.writes:
        for leftover in context.out.glob(f"{WINDOW}*"):
            remove_tree(leftover)
    team.meet()
    source = source_of(context) if recipe.latents.width else "store"
    if source != "store":
        context.progress.note(NOTES[source])
    if source == "rolling" and steps:
        rolling = RollingStates(
            recipe.latents.states,
            (Wanted(*recipe.mine(step)) for step in steps),
            batch=len(recipe.places),
            folder=context.out / f"{WINDOW}{team.rank}",
            window_bytes=train_compute(context.compute).window_bytes // team.size,
        )
        recipe = replace(recipe, latents=recipe.latents.through(rolling))
    return Feed(recipe, steps)


def describe(section: Train, latents: LatentRows) -> Card:
    """All that sampling will need to know. Raises Misconfigured where the settings describe no model."""
    vocabulary = latents.tokens.vocabulary
    own = section.embeddings
    model = model_config(
        section.model,
        width=latents.width if own is None else own.width,
        vocabulary=vocabulary.size,
        length=latents.length,
        table=own is not None,
    )
    return Card(
        model=model,
        objective=objective_config(section.objective),
        scale=latents.scale,
        vocabulary=vocabulary_digest(vocabulary),
        encoder=latents.encoder,
    )
