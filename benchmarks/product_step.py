"""The product's training step on rows of a real store, put together as the train stage does, timed by its parts."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import Stopwatch
from torch import Tensor

from elf.cache.layout import ArrayLayout
from elf.cache.shards import finalise, write_metadata, write_shard
from elf.cache.store import Artifact
from elf.pipeline.progress import LineProgress
from elf.pipeline.stage import StageContext
from elf.stages.compute import TrainCompute
from elf.stages.feeding import Fed, Feed, Recipe
from elf.stages.model.network import Network, build
from elf.stages.model.optim import clip
from elf.stages.objectives import Objective
from elf.stages.pieces import Pieces
from elf.stages.rows import TokenRows
from elf.stages.team import Team
from elf.stages.train_settings import Train
from elf.stages.training_inputs import describe, open_feed, open_splits
from elf.stages.training_state import TrainingState

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from toy_training import Corpus, Size, make_tokens
from toy_training import finish as finish_artifact


def make_corpus(
    folder: Path, encode: Callable[[Tensor], Tensor], *, rows: int, batch: int, length: int
) -> Corpus:
    """Rows of random ids and a float32 store of their states."""
    width, words = 512, 32128
    tokens = make_tokens(folder / "tokens", Size(rows, length, width, words))
    ids = torch.from_numpy(TokenRows.open(tokens.path).ids(np.arange(rows))).long()
    states = torch.cat([encode(part) for part in ids.split(batch)]).numpy()
    layout = ArrayLayout(rows, length, width, "float32", batch)
    store = folder / "latents" / "plain"
    write_metadata(store, layout)
    for shard in range(layout.shards):
        chosen = layout.rows_of(shard)
        write_shard(store, layout, shard, [states[chosen.start : chosen.stop]])
    finalise(store, layout)
    facts = {
        "rows": rows,
        "length": length,
        "width": width,
        "dtype": "float32",
        "encoder": "t5-small's shape",
    }
    moments = {"mean": float(states.mean()), "std": float(states.std())}
    latents = finish_artifact(
        folder / "latents", "encode", facts | moments, {"tokens": tokens.manifest.fingerprint}
    )
    return Corpus({"tokens": tokens, "latents": latents})


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the train stage has in hand when its loop begins."""

    section: Train
    context: StageContext
    recipe: Recipe
    network: Network
    team: Team

    @classmethod
    def of(
        cls, folder: Path, inputs: Mapping[str, Artifact], team: Team, settings: Mapping[str, Any]
    ) -> "Prepared":
        section = Train.model_validate(
            {"latents": {"std": "measured"}, "seed": 0, "steps": 10**6, **settings}
        )
        folder.mkdir(parents=True)
        compute = TrainCompute(device="cpu", threads=torch.get_num_threads())
        context = StageContext(folder, inputs, compute, LineProgress(every=1e9))
        latents, _ = open_splits(section.latents, context, team.device, drops=False)
        card = describe(section, latents)
        recipe = Recipe(
            latents, section.seed, section.batch, team.places(section.batch), card.objective, team.device
        )
        network = build(card.model, torch.Generator().manual_seed(section.seed))
        stir(network)
        return cls(section, context, recipe, network, team)

    def feed(self, steps: range) -> Feed:
        return open_feed(self.recipe, steps, self.context, self.team)


@torch.no_grad()
def stir(network: Network) -> None:
    """Heads begin at zero, which would leave most gradients zero."""
    generator = torch.Generator().manual_seed(1)
    for parameter in network.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.01)


class ProductStep:
    """``step`` trains on what the feed gives."""

    def __init__(self, prepared: Prepared, watch: Stopwatch) -> None:
        section, self.recipe, self.watch = prepared.section, prepared.recipe, watch
        self.network = prepared.network.train()
        self.state = TrainingState(self.network, section.optim, prepared.team)
        self.objective = Objective(self.network, self.recipe.objective, section.precision)
        self.pieces = Pieces(self.recipe.places, groups=1, at_once=None, team=prepared.team)

    def add_gradients(self, fed: Fed) -> float:
        self.state.optimizer.zero_grad(set_to_none=True)
        mine = self.pieces.add_gradients(
            self.objective, fed, self.recipe.latents.normalise, self.objective.units(fed.raw)
        )
        return float(mine.error_B.double().sum()) / fed.raw.ids_BL.numel()

    def step(self, fed: Fed, *, lr: float, limit: float = 1.0) -> None:
        with self.watch("product whole"):
            with self.watch("product loss"):
                self.add_gradients(fed)
            clip(self.network.parameters(), limit)
            with self.watch("product optimiser"):
                self.state.advance(lr)
