"""Stage distill: one round of progressive distillation (paper, ELF+PD). A student learns to land with one step where
its teacher, the trained model with averaged weights, lands with several.

The student starts from the averaged weights of the round before, or from the teacher's. What comes out has the form
of a training artifact, and is sampled like one.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from elf.cache.manifest import JSON
from elf.pipeline.errors import Failed
from elf.pipeline.stage import StageContext
from elf.stages.feeding import Recipe
from elf.stages.heldout import open_heldout
from elf.stages.latents import LatentRows
from elf.stages.model.config import DistillConfig
from elf.stages.model.draws import draw_distillation, seed_of
from elf.stages.model.flops import distill_flops
from elf.stages.model.speeding import compile_blocks
from elf.stages.objectives import Distillation
from elf.stages.steps import training_length
from elf.stages.stopping import StopWish
from elf.stages.task import Task
from elf.stages.team import Team
from elf.stages.train_settings import DistillRound
from elf.stages.trained import Card, Trained, load_trained, same_network
from elf.stages.training import learn, speed_up
from elf.stages.training_inputs import open_splits
from elf.stages.training_metrics import METRICS, read_metrics


def run(section: DistillRound, context: StageContext) -> Mapping[str, JSON]:
    """Distil one round; ``elf.stages.training.learn`` says what is written and raised.

    The facts tell besides how often the teacher was called and, where there is a held-out split, ``teacher_alone``:
    its own error at the student's number of steps, on the rows and draws of ``heldout``. Raises Failed too where the
    teacher's or the first weights are not there, or are not of one network.
    """
    with StopWish() as wish:
        team = Team(context.compute)
        teacher = load_trained(context.inputs["teacher"].path, "ema", team.device)
        task = prepare(section, context, team, teacher)
        facts = learn(task, section, context, team, wish)
        alone = measure_alone(task, teacher)
        team.leave()
        if not team.writes:
            return {}
        called = sum(line.get("teacher_rows", 0) for line in read_metrics(context.out / METRICS))
        return {
            **facts,
            "student_steps": section.student_steps,
            "span_steps": section.span_steps,
            "teacher_rows": called,
            "teacher_weights": teacher.digest,
            "teacher_alone": alone,
        }


def prepare(section: DistillRound, context: StageContext, team: Team, teacher: Trained) -> Task:
    """The student and its lessons."""
    start = load_trained(context.inputs["start"].path, "ema", team.device)
    same_network(start, teacher)
    drops = teacher.objective.condition_dropout > 0
    latents, validation = open_splits(teacher.card.scale, context, team.device, drops=drops)
    card = check_card(teacher.card, latents)
    # Rounds see other rows and draws than each other, and than the training they come from.
    seed = seed_of("distill", section.seed, section.student_steps)
    lesson = DistillConfig(
        span=1.0 / section.student_steps,
        teacher_steps=section.span_steps,
        student_schedule=section.student_schedule,
        teacher_schedule=section.teacher_schedule,
    )
    recipe = Recipe(
        latents,
        seed,
        section.batch,
        team.places(section.batch),
        card.objective,
        team.device,
        partial(draw_distillation, distillation=lesson),
    )
    student = start.network.requires_grad_(True)
    compiled = speed_up(student, context, team.device)
    if compiled:
        compile_blocks(teacher.network)
    return Task(
        name="distill",
        card=card,
        network=student,
        objective=Distillation(
            student, teacher.network, card.objective, section.precision, few_shapes=compiled
        ),
        recipe=recipe,
        length=training_length(section, latents.rows),
        row_flops=distill_flops(
            card.model, card.objective, card.model.length, teacher_steps=section.span_steps
        ),
        heldout=open_heldout(recipe, validation, section.heldout, team, at_once=context.compute.batch),
        shown=latents if validation is None else validation,
    )


def check_card(card: Card, latents: LatentRows) -> Card:
    """The teacher's description, of these latents. Raises Failed where it was trained on others."""
    vocabulary = latents.tokens.vocabulary
    card.check_fits(vocabulary=vocabulary, encoder=None if card.encoder is None else latents.encoder)
    if latents.width != card.model.width:
        raise Failed(
            f"The teacher was trained with width {card.model.width}, but is given latents of width {latents.width}. "
            "Use those of the encoder it was trained with."
        )
    return replace(card, encoder=latents.encoder)


def measure_alone(task: Task, teacher: Trained) -> dict[str, JSON] | None:
    """The held-out error of a student that has learnt nothing: the teacher itself."""
    if task.heldout is None:
        return None
    objective = task.objective
    alone = Distillation(teacher.network, teacher.network, objective.config, objective.precision)
    return dict(task.heldout.measure(alone).means())
