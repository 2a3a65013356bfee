"""What a step of a training run is, in tokens and operations, and how many a second its devices could do at best."""

import torch

from elf.pipeline.stage import StageContext
from elf.stages.machine import this_machine
from elf.stages.pace import Effort, flops_text
from elf.stages.probe import product_rate
from elf.stages.task import Task
from elf.stages.team import Team
from elf.stages.train_settings import Training
from elf.stages.workload import TRAINED_IN


def weigh_step(task: Task, section: Training, context: StageContext, team: Team) -> Effort:
    """For the process that writes: says what MFU is a share of; measures that, a moment, where no plan did before."""
    flops = section.batch * task.row_flops
    peak, when = _peak(section, context, team)
    context.progress.note(f"A step is {flops_text(flops)}; MFU is the share of {flops_text(peak)}/s, {when}.")
    return Effort(section.batch * task.recipe.latents.length, flops, peak)


def _peak(section: Training, context: StageContext, team: Team) -> tuple[float, str]:
    here, precision = this_machine(), TRAINED_IN[section.precision]
    if here.speed.measured and (team.device.type == "cpu" or here.accelerated):
        one = context.compute.model_copy(
            update={"device": team.device.type, "threads": torch.get_num_threads()}
        )
        return team.size * here.peak(one, precision), f"measured {here.speed.measured}"
    return team.size * product_rate(team.device.type, precision), "measured now"
