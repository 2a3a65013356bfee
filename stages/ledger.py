"""What a result cost: tokens, operations and seconds of everything it rests on, each artifact once.

Operations are counted where an artifact tells enough for that, else their mean is taken and marked, else they are not
told; nothing is made up. Not among them: optimisers, norms and other work that is no product of matrices, texts looked
at while training, what went into weights that came from outside, and work that was lost to a kill, of which only the
seconds are known.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from elf.cache.store import Artifact
from elf.pipeline.devices import Devices, read_devices
from elf.stages.counted import Counted, Lineage, Untold
from elf.stages.counted_encoder import count_encoding
from elf.stages.counted_pretraining import count_pretraining
from elf.stages.counted_texts import count_judging, count_sampling
from elf.stages.counted_training import count_distillation, count_training
from elf.stages.lineage import Node, trace

LEFT_OUT = (
    "Operations: matrix products and attention, a multiply and an add as two. Not counted: optimisers, texts looked "
    "at while training, weights that came from outside, and what a kill lost, whose seconds count all the same."
)
HOST = Devices("cpu", "", 1, 1, 0)
"""Of stages that have no use for anything else."""


def _tokenize(node: Node, lineage: Lineage) -> Counted:
    assert node.manifest is not None
    for name in ("packed", "tokens"):
        found = node.manifest.facts.get(name)
        if isinstance(found, int):
            return Counted(found)
    return Counted()


def _nothing(node: Node, lineage: Lineage) -> Counted:
    return Counted()


def _outside(node: Node, lineage: Lineage) -> Counted:
    raise Untold("its weights were trained elsewhere")


COUNTED: Mapping[str, Callable[[Node, Lineage], Counted]] = {
    "fetch": _nothing,
    "tokenizer": _nothing,
    "tokenize": _tokenize,
    "pretrain": count_pretraining,
    "encode": count_encoding,
    "train": count_training,
    "weights": _outside,
    "distill": count_distillation,
    "sample": count_sampling,
    "control": _nothing,
    "evaluate": count_judging,
    "report": _nothing,
}
ON_HOST = ("fetch", "tokenizer", "tokenize", "weights", "control", "report")


@dataclass(frozen=True, slots=True)
class Line:
    """One artifact. ``devices`` is None where it does not tell what it was computed on, or names several."""

    name: str
    stage: str
    key: str
    counted: Counted
    seconds: float | None
    devices: Devices | None

    @property
    def flops(self) -> float | None:
        """None where they are not told; 0 where there were none."""
        return None if self.counted.untold else sum(part.flops for part in self.counted.parts)

    @property
    def exact(self) -> bool:
        return all(part.exact for part in self.counted.parts)

    @property
    def device_seconds(self) -> float | None:
        """Seconds times devices."""
        if self.seconds is None or self.devices is None:
            return None
        return self.seconds * self.devices.count


@dataclass(frozen=True, slots=True)
class Ledger:
    """Lines in the order in which things were needed."""

    lines: tuple[Line, ...]

    @property
    def flops(self) -> float:
        """Of those that tell."""
        return sum(line.flops or 0.0 for line in self.lines)

    @property
    def exact(self) -> bool:
        return all(line.exact for line in self.lines)

    @property
    def untold(self) -> tuple[Line, ...]:
        """Lines whose operations are not known."""
        return tuple(line for line in self.lines if line.counted.untold)

    @property
    def imported(self) -> tuple[str, ...]:
        """Names of the weights that were trained elsewhere, so that nobody here knows on how much."""
        return tuple(line.name for line in self.lines if line.stage == "weights")

    @property
    def seconds(self) -> float:
        return sum(line.seconds or 0.0 for line in self.lines)

    @property
    def device_seconds(self) -> Mapping[str, float]:
        """By kind of device; under an empty name the plain seconds of those that do not tell."""
        found: dict[str, float] = {}
        for line in self.lines:
            if line.seconds is not None:
                kind = line.devices.kind if line.devices is not None else ""
                found[kind] = found.get(kind, 0.0) + (line.device_seconds or line.seconds)
        return found

    def tokens(self, *stages: str) -> int:
        """Of all lines of some stages."""
        return sum(line.counted.tokens or 0 for line in self.lines if line.stage in stages)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "lines": [_plain(line) for line in self.lines],
            "flops": self.flops,
            "flops_exact": self.exact and not self.untold,
            "flops_untold": [line.name for line in self.untold],
            "seconds": self.seconds,
            "device_seconds": {kind or "untold": seconds for kind, seconds in self.device_seconds.items()},
            "trained_tokens": self.tokens("train", "distill"),
            "trained_tokens_untold": list(self.imported),
            "distilled_tokens": self.tokens("distill"),
            "pretrained_tokens": self.tokens("pretrain"),
        }


def keep_ledger(artifacts: Mapping[str, Artifact]) -> Ledger:
    """Of artifacts by their names for people and all that they rest on."""
    return ledger_of(trace(artifacts))


def ledger_of(nodes: Sequence[Node]) -> Ledger:
    """Of a lineage; what was never stored is counted with what it was made for."""
    lineage = Lineage({node.key: node for node in nodes})
    return Ledger(tuple(_lines(nodes, lineage)))


def _lines(nodes: Iterable[Node], lineage: Lineage) -> Iterable[Line]:
    for node in nodes:
        if node.manifest is None:
            yield Line(node.name, "", node.key, Counted(untold="it left the store"), None, None)
        elif node.stored:
            stage = node.manifest.stage
            yield Line(node.name, stage, node.key, _count(node, lineage), node.seconds, _devices(node, stage))


def _count(node: Node, lineage: Lineage) -> Counted:
    assert node.manifest is not None
    count = COUNTED.get(node.manifest.stage)
    if count is None:
        return Counted(untold="its stage is not known here")
    try:
        return count(node, lineage)
    except Untold as reason:
        return Counted(untold=str(reason))


def _devices(node: Node, stage: str) -> Devices | None:
    assert node.manifest is not None
    if stage in ON_HOST or (stage == "evaluate" and node.manifest.config.get("judge") is None):
        return HOST
    told = read_devices(node.folder) if node.folder is not None else ()
    return told[0] if len(told) == 1 else None


def _plain(line: Line) -> dict[str, Any]:
    return {
        "name": line.name,
        "stage": line.stage or None,
        "key": line.key,
        "tokens": line.counted.tokens,
        "flops": line.flops,
        "exact": line.exact,
        "untold": line.counted.untold or None,
        "parts": [asdict(part) for part in line.counted.parts],
        "seconds": line.seconds,
        "device_seconds": line.device_seconds,
        "devices": asdict(line.devices) if line.devices is not None else None,
    }
