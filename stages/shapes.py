"""From the sections of a configuration file to what the model takes; light enough for planning."""

from elf.pipeline.errors import Misconfigured
from elf.stages.model.config import SIZES, ModelConfig, ObjectiveConfig
from elf.stages.model.token_config import TokenConfig, TokenMethod
from elf.stages.train_settings import Model, Objective


def model_config(
    model: Model, *, width: int, vocabulary: int, length: int, table: bool = False
) -> ModelConfig:
    """The network for latents of ``width`` numbers, its own ``table``'s or others', rows of ``length`` tokens and
    ``vocabulary`` head entries.

    ``size`` sets depth, hidden and heads, each of which may be given over it. Raises Misconfigured.
    """
    rest = model.model_dump(exclude={"size", "depth", "hidden", "heads"})
    try:
        return ModelConfig(
            width=width, vocabulary=vocabulary, length=length, table=table, **_blocks(model), **rest
        )
    except ValueError as error:
        raise Misconfigured(f"train.model describes no network: {error}.") from error


def token_config(model: Model, method: TokenMethod, *, vocabulary: int, length: int) -> TokenConfig:
    """The model of tokens that has the blocks of the same settings' flow. Raises Misconfigured."""
    try:
        return TokenConfig(
            method=method, vocabulary=vocabulary, length=length, dropout=model.dropout, **_blocks(model)
        )
    except ValueError as error:
        raise Misconfigured(f"train.model describes no network: {error}.") from error


def _blocks(model: Model) -> dict[str, int]:
    """Depth, hidden and heads."""
    named = None if model.size is None else SIZES[model.size]._asdict()
    given = model.model_dump(include={"depth", "hidden", "heads"}, exclude_none=True)
    return {**(named or {}), **given}


def objective_config(objective: Objective) -> ObjectiveConfig:
    """The training objective; raises Misconfigured."""
    try:
        return ObjectiveConfig(**objective.model_dump())
    except ValueError as error:
        raise Misconfigured(f"train.objective cannot be trained: {error}.") from error
