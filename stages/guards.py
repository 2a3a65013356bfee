"""What is said of a set of texts whose scores are beyond the guard: that a model's are degenerate, and of a control,
which is what it was made to be, only that the guard would stop it. Light: no torch, no numpy."""

from collections.abc import Mapping
from typing import Any

CONTROL = "control"
"""The stage that makes texts without a model."""


def is_control(metrics: Mapping[str, Any]) -> bool:
    """Whether the scores in a ``metrics.json`` are of texts that no model made."""
    return (metrics.get("samples") or {}).get("stage") == CONTROL


def mark(*, control: bool) -> str:
    """The words before a reason."""
    return "beyond the guard" if control else "degenerate"


def say_fault(names: str, fault: str, *, control: bool, several: bool = False) -> str:
    """``ode is degenerate: every text is empty``, ``unigram (control) is beyond the guard: Gen-PPL above 300``."""
    who = f"{names} ({CONTROL}{'s' if several else ''})" if control else names
    return f"{who} {'are' if several else 'is'} {mark(control=control)}: {fault}"
