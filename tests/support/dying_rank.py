"""A training run of several processes in which one is killed: ``DIES`` is ``<rank>:<step>``, before that step changes
anything."""

import os
import signal
from collections.abc import Mapping

from elf.cache.manifest import JSON
from elf.pipeline.stage import StageContext
from elf.stages import train
from elf.stages.train_settings import Train
from elf.stages.training_state import TrainingState


def run(section: Train, context: StageContext) -> Mapping[str, JSON]:
    rank, step = (int(number) for number in os.environ["DIES"].split(":"))
    advance = TrainingState.advance

    def interrupted(self: TrainingState, lr: float) -> None:
        if os.environ["RANK"] == str(rank) and self.step == step:
            os.kill(os.getpid(), signal.SIGKILL)
        advance(self, lr)

    TrainingState.advance = interrupted
    return train.run(section, context)
