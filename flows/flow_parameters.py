"""What the flows are given: overrides and names of stages as parameters, and the errors that answer them."""

from collections.abc import Mapping
from typing import Any, Literal

import yaml

from elf.cache.errors import CacheError
from elf.pipeline.errors import Failed, Misconfigured

Scalar = bool | int | float | str | None
StageName = Literal[
    "fetch",
    "tokenizer",
    "tokenize",
    "pretrain",
    "encode",
    "train",
    "weights",
    "distill",
    "sample",
    "control",
    "evaluate",
    "report",
]
REFUSALS = (Failed, Misconfigured, CacheError)
"""Errors that say in one paragraph what is wrong; where they were raised tells a reader nothing more."""


def as_overrides(settings: Mapping[str, Any]) -> list[str]:
    """Settings by dotted name as ``--set`` takes them."""
    return [f"{key}={_as_yaml(value)}" for key, value in settings.items()]


def _as_yaml(value: Any) -> str:
    """On one line; text stays text even where it looks like a number."""
    text = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True)
    return text.removesuffix("...\n").strip()
