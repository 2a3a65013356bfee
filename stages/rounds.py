"""What a report says of the rounds of a distillation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elf.cache.store import Artifact
from elf.stages.page import say_count

UNKNOWN = "–"


@dataclass(frozen=True, slots=True)
class Round:
    """One round, as text. ``error`` and ``alone`` are held-out, on the same rows and draws."""

    student: str
    span_steps: int
    steps: str
    teacher_rows: str
    error: str
    alone: str
    ce: str


def read_rounds(inputs: Mapping[str, Artifact]) -> list[Round]:
    """The rounds in the order they were distilled, by the roles of the report stage."""
    facts: list[Mapping[str, Any]] = [
        each.manifest.facts for role, each in inputs.items() if role.startswith("distilled/")
    ]
    return [_round(each) for each in sorted(facts, key=lambda each: -each["student_steps"])]


def _round(facts: Mapping[str, Any]) -> Round:
    heldout, alone = facts["heldout"] or {}, facts["teacher_alone"] or {}
    steps = facts["student_steps"]
    return Round(
        student=f"{steps} step{'' if steps == 1 else 's'}",
        span_steps=facts["span_steps"],
        steps=say_count(facts["steps"]),
        teacher_rows=say_count(facts["teacher_rows"]),
        error=_figure(heldout.get("heldout_l2")),
        alone=_figure(alone.get("l2")),
        ce=_figure(heldout.get("heldout_ce")),
    )


def _figure(number: float | None) -> str:
    return UNKNOWN if number is None else f"{number:.4g}"
