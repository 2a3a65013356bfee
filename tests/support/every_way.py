"""Several training runs in one launch, since starting processes takes longer than they do: ``WAYS`` is a JSON list of
[folder, steps, whether compiled], and each run goes on from what its folder holds."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from elf.cache.manifest import JSON
from elf.pipeline.stage import StageContext
from elf.stages import train
from elf.stages.team import Team
from elf.stages.train_settings import Train


def run(section: Train, context: StageContext) -> Mapping[str, JSON]:
    leave = Team.leave

    def stays(self: Team) -> None:
        self.meet()

    Team.leave = stays
    for folder, steps, compiled in json.loads(os.environ["WAYS"]):
        compute = context.compute.model_copy(update={"compile": compiled})
        there = replace(context, out=Path(folder), compute=compute)
        train.run(section.model_copy(update={"steps": steps}), there)
    leave(Team(context.compute))
    return {}
