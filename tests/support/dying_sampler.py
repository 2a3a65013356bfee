"""A sampling run of several processes in which one comes to grief: ``GRIEF`` is ``<rank>:<batch>:<kind>``, before that
batch of its own is sampled. The kind is ``killed`` or ``refuses``."""

import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from elf.cache.manifest import JSON
from elf.pipeline.errors import Failed
from elf.pipeline.stage import StageContext
from elf.stages import sample
from elf.stages.config import Sample


def run(section: Sample, context: StageContext) -> Mapping[str, JSON]:
    rank, batch, kind = os.environ["GRIEF"].split(":")
    ids, seen = sample.Sampling.ids, []

    def grieved(sampling: sample.Sampling, seed: int, places: Sequence[int], *given: Any) -> Any:
        if os.environ["RANK"] == rank and len(seen) == int(batch):
            if kind == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise Failed(f"Rank {rank} does not like texts {list(places)}.")
        seen.append(places)
        return ids(sampling, seed, places, *given)

    setattr(sample.Sampling, "ids", grieved)  # noqa: B010  # of another signature, which no call here has
    return sample.run(section, context)
