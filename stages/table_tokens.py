"""Tokens that a configuration trains on, counted both ways: of documents, and of rows times their length."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from elf.cache.store import Artifact
from elf.pipeline.plan import Plan, Planned
from elf.pipeline.wording import about, amount_text
from elf.stages.config import Experiment
from elf.stages.estimate import Estimator
from elf.stages.machine import Machine
from elf.stages.train_settings import Training


@dataclass(frozen=True, slots=True)
class Seen:
    """Of one training run. ``documents`` is None where nothing tells it; both are ``counted`` where the rows are
    there, and worked out from settings else."""

    step: str
    steps: int
    batch: int
    length: int
    epochs: float
    documents: float | None
    counted: bool

    @property
    def rows(self) -> int:
        """Tokens as rows times their length, as often as they are trained on."""
        return self.steps * self.batch * self.length

    def told(self, number: float | None) -> str:
        """As many as that, marked where they are not counted."""
        text = amount_text(None if number is None else round(number))
        return text if self.counted else about(text)


def tokens_seen(
    experiment: Experiment, plan: Plan, find: Callable[[Planned], Artifact | None], machine: Machine
) -> list[Seen]:
    """Of every training run and round of distillation of a plan whose length is known."""
    work = Estimator(experiment, machine)
    work.walk(plan, find)
    found: list[Seen] = []
    for planned in plan:
        section = planned.step.section
        if not isinstance(section, Training):
            continue
        rows, steps = work.known[planned.step.inputs["tokens"]], work.steps(planned)
        if steps is None or not rows.rows:
            continue
        epochs = steps * section.batch / rows.rows
        one = _documents(experiment, rows.found)
        found.append(
            Seen(
                step=planned.step.name,
                steps=steps,
                batch=section.batch,
                length=experiment.tokenize.length,
                epochs=epochs,
                documents=None if one is None else epochs * one,
                counted=rows.found is not None,
            )
        )
    return found


def _documents(experiment: Experiment, tokens: Artifact | None) -> float | None:
    """Tokens of the training documents; unknown where rows are of a part of them, and of pairs that are not there."""
    if experiment.tokenize.rows is not None:
        return None
    if tokens is not None:
        facts: Mapping[str, object] = tokens.manifest.facts
        counted = facts.get("tokens")
        return float(counted) if isinstance(counted, int) else None
    data = experiment.data
    if data.train.pairs or data.train.expect_tokens is None:
        return None
    return data.train.expect_tokens * data.train.share * (1 - data.holdout)
