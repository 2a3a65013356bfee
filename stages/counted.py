"""What the passes through networks behind one artifact came to, and how that is told.

Operations are those of matrix products and attention, a multiply and an add as two (``elf.stages.model.flops``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elf.cache.errors import Damaged
from elf.stages.json_files import read_json
from elf.stages.lineage import Node
from elf.stages.model.config import ModelConfig, ObjectiveConfig


@dataclass(frozen=True, slots=True)
class Part:
    """Passes of one kind: ``rows`` rows or texts, ``flops`` operations in all. Not ``exact`` where draws or lengths
    that they depend on were not counted, and their mean stands for them."""

    name: str
    rows: float
    flops: float
    exact: bool


@dataclass(frozen=True, slots=True)
class Counted:
    """``tokens``: positions that went through, of training as often as they were trained on, of an encoder's own
    training without padding. ``untold`` says in words why operations are not known; without it and without parts there
    were none."""

    tokens: int | None = None
    parts: tuple[Part, ...] = ()
    untold: str = ""


class Untold(Exception):
    """An artifact does not tell what is asked of it; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """Artifacts by their keys, so that one's inputs can be looked at."""

    nodes: Mapping[str, Node]

    def above(self, node: Node, role: str) -> Node | None:
        """The input of ``node`` that is called so; None where it has none, or nothing is known of it."""
        assert node.manifest is not None
        found = self.nodes.get(str(node.manifest.inputs.get(role)))
        return found if found is not None and found.manifest is not None else None

    def folder(self, node: Node, role: str) -> Path:
        """Where an input lies. Raises Untold where it is gone."""
        found = self.above(node, role)
        if found is None or found.folder is None:
            raise Untold(f"its {role} left the store")
        return found.folder


def fact(node: Node, name: str) -> int:
    """A count among an artifact's facts. Raises Untold where it has none."""
    assert node.manifest is not None
    return whole(node.manifest.facts.get(name), f"its facts have no {name}")


def setting(node: Node, *path: str) -> Any:
    """A setting its stage was given. Raises Untold where it was given none."""
    assert node.manifest is not None
    found: Any = node.manifest.config
    for name in path:
        if not isinstance(found, Mapping) or name not in found:
            raise Untold(f"its settings have no {'.'.join(path)}")
        found = found[name]
    return found


def whole(value: Any, otherwise: str) -> int:
    """``value`` if it is a count. Raises Untold, saying ``otherwise``."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise Untold(otherwise)
    return value


@dataclass(frozen=True, slots=True)
class Network:
    """A trained network and what it was trained on, from its ``model.json``."""

    model: ModelConfig
    objective: ObjectiveConfig


def read_network(folder: Path) -> Network:
    """Raises Untold where ``model.json`` is not there or describes another kind of network."""
    try:
        card = read_json(folder / "model.json")
        return Network(ModelConfig(**card["model"]), ObjectiveConfig(**card["objective"]))
    except (Damaged, ValueError, KeyError, TypeError) as error:
        raise Untold("its model.json describes no network whose operations are known here") from error
