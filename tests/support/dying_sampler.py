"""A sampling run of several processes in which one comes to grief: ``GRIEF`` is ``<rank>:<batch>:<kind>``, before that
batch of its own is sampled. The kind is ``killed`` or ``refuses``."""

import os
import signal
from collections.abc import Mapping, Sequence

import numpy as np

from elf.cache.manifest import JSON
from elf.pipeline.errors import Failed
from elf.pipeline.stage import StageContext
from elf.stages import sample
from elf.stages.config import Sample
from elf.stages.model.sampler import Condition
from elf.stages.sampling import Sampling


def run(section: Sample, context: StageContext) -> Mapping[str, JSON]:
    rank, batch, kind = os.environ["GRIEF"].split(":")
    ids, seen = Sampling.ids, list[Sequence[int]]()

    def grieved(
        self: Sampling, seed: int, places: Sequence[int], condition: Condition | None = None
    ) -> list[np.ndarray]:
        if os.environ["RANK"] == rank and len(seen) == int(batch):
            if kind == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise Failed(f"Rank {rank} does not like texts {list(places)}.")
        seen.append(places)
        return ids(self, seed, places, condition)

    Sampling.ids = grieved
    return sample.run(section, context)
