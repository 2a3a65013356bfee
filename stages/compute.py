"""How stages run, never what they make: the section ``compute`` of a configuration."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from elf.pipeline.section import RUNTIME, Section
from elf.pipeline.stage import Compute

Compile: TypeAlias = Literal["auto", True, False]


class GlimpseSettings(Section):
    """A few texts sampled while training, from the same noise each time: to watch, not to score."""

    every: Annotated[int, RUNTIME, Field(ge=1)]
    """Steps between two looks."""
    count: Annotated[int, RUNTIME, Field(ge=1)] = 4
    """Texts; of pairs, the first rows of the validation split."""
    steps: Annotated[int, RUNTIME, Field(ge=1)] = 32
    """Steps of the sampler, an ODE with averaged weights."""


class TrainCompute(Compute):
    """How training is run, and where its rows come from: every source gives the same rows in the same order."""

    source: Annotated[Literal["auto", "store", "rolling", "live"], RUNTIME] = "auto"
    """``store``: encode once, read what is stored. ``live``: the frozen encoder runs beside each step, no disk.
    ``rolling``: it runs ahead and keeps a window on the disk. ``auto``: a store that is there or fits, else rolling,
    else live."""
    window_bytes: Annotated[int, RUNTIME, Field(ge=1)] = 8 * 2**30
    """Disk that ``rolling`` takes at most, over all processes."""
    reader: Annotated[Literal["map", "pread"], RUNTIME] = "map"
    """How a store is read: through memory maps, or by reads (network file systems: an I/O error under a map kills)."""
    compile: Annotated[Compile, RUNTIME] = "auto"
    """Compile the network's blocks, half a minute at the start: ``auto`` on CUDA. Changes rounding."""
    checkpointing: Annotated[bool, RUNTIME] = False
    """Keep only the blocks' inputs, compute the blocks again in the backward pass: a third more work, same numbers."""
    tracker: Annotated[Literal["none", "tensorboard", "wandb"], RUNTIME] = "none"
    """Where figures go besides ``metrics.jsonl``; the package must be installed."""
    samples: Annotated[GlimpseSettings | None, RUNTIME] = None
    """Texts sampled while training; none when absent."""


class SampleCompute(Compute):
    """How sampling is run."""

    compile: Annotated[Compile, RUNTIME] = "auto"
    """Compile the network's blocks, half a minute at the start: ``auto`` on CUDA. Changes rounding."""


class ComputeByStage(Section):
    """Runtime settings of each stage; nothing here is part of any key."""

    fetch: Compute = Compute()
    tokenizer: Compute = Compute()
    tokenize: Compute = Compute()
    pretrain: Compute = Compute()
    encode: Compute = Compute()
    train: TrainCompute = TrainCompute()
    distill: TrainCompute | None = None
    """As ``train`` when absent."""
    weights: Compute = Compute()
    sample: SampleCompute = SampleCompute()
    control: Compute = Compute()
    evaluate: Compute = Compute()
    report: Compute = Compute()

    def of(self, stage: str) -> Compute:
        """Of the stage so called."""
        if stage == "distill" and self.distill is None:
            return self.train
        return getattr(self, stage)
