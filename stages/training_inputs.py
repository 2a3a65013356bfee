"""What a training run is given: its splits, checked, and the description of the model that comes of them."""

from elf.pipeline.errors import Failed
from elf.pipeline.stage import StageContext
from elf.stages.config import Train
from elf.stages.latents import LatentRows, open_latents, same_kind
from elf.stages.shapes import model_config, objective_config
from elf.stages.trained import Card, vocabulary_digest


def open_splits(section: Train, context: StageContext) -> tuple[LatentRows, LatentRows | None]:
    """The training split, and the held-out one where there is one; both normalised by the training split's scale.

    Raises Failed, naming both values, where anything does not fit.
    """
    inputs, drops = context.inputs, section.objective.condition_dropout > 0
    train = open_latents(inputs["tokens"], inputs["latents"], section.latents, drops=drops)
    if ("heldout_tokens" in inputs) != ("heldout_latents" in inputs):
        raise Failed(
            "A held-out split needs both inputs, heldout_tokens and heldout_latents; one is missing."
        )
    if "heldout_tokens" not in inputs:
        return train, None
    heldout = open_latents(inputs["heldout_tokens"], inputs["heldout_latents"], train.scale, drops=drops)
    same_kind(train, heldout)
    return train, heldout


def describe(section: Train, latents: LatentRows) -> Card:
    """All that sampling will need to know. Raises Misconfigured where the settings describe no model."""
    vocabulary = latents.tokens.vocabulary
    model = model_config(
        section.model, width=latents.width, vocabulary=vocabulary.size, length=latents.length
    )
    return Card(
        model=model,
        objective=objective_config(section.objective),
        scale=latents.scale,
        vocabulary=vocabulary_digest(vocabulary),
        encoder=latents.facts.get("encoder"),
    )
