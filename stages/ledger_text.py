"""A ledger in words and cells, the same in a terminal and on a page."""

from collections.abc import Iterator
from dataclasses import dataclass

from elf.pipeline.wording import DASH, about, amount_text, seconds_text
from elf.stages.ledger import Ledger, Line
from elf.stages.pace import flops_text

KINDS = {"cpu": "CPUs", "cuda": "GPUs", "": "devices that were not told"}


@dataclass(frozen=True, slots=True)
class Cells:
    """One row: an artifact, or (``part``) some of the passes behind it."""

    name: str
    tokens: str
    operations: str
    time: str
    device_time: str
    part: bool = False


def rows_of_ledger(ledger: Ledger) -> Iterator[Cells]:
    """A row an artifact, under it its parts where it has several, at the end the sum."""
    for line in ledger.lines:
        yield Cells(
            line.name,
            amount_text(line.counted.tokens),
            operations_of(line),
            seconds_text(line.seconds),
            _device_time(line),
        )
        if len(line.counted.parts) > 1:
            for part in line.counted.parts:
                rows = amount_text(round(part.rows))
                told = flops_text(part.flops)
                name = f"{part.name}, {rows if part.exact else about(rows)} rows"
                yield Cells(name, "", told if part.exact else about(told), "", "", part=True)
    told = flops_text(ledger.flops)
    sure = ledger.exact and not ledger.untold
    operations = told if sure else f"{'more than ' if ledger.untold else ''}{about(told)}"
    kinds = ledger.device_seconds
    # Seconds of different devices make no sum.
    device_time = seconds_text(sum(kinds.values())) if len(kinds) == 1 and "" not in kinds else ""
    yield Cells("all of these", "", operations, seconds_text(ledger.seconds), device_time)


def operations_of(line: Line) -> str:
    """``0.7 GFLOP``, ``~1.2 TFLOP``; a dash where there are none."""
    if line.flops is None:
        return "not told"
    if not line.flops:
        return DASH
    return flops_text(line.flops) if line.exact else about(flops_text(line.flops))


def _device_time(line: Line) -> str:
    if line.seconds is None:
        return DASH
    return "not told" if line.device_seconds is None else seconds_text(line.device_seconds)


def sentences(ledger: Ledger) -> Iterator[str]:
    """What stands under the rows."""
    yield from _trained_on(ledger)
    kinds = [f"{seconds_text(seconds)} on {KINDS[kind]}" for kind, seconds in ledger.device_seconds.items()]
    if kinds:
        yield f"Device time: {', '.join(kinds)}."
    yield from _computed_on(ledger)
    for line in ledger.untold:
        yield f"{line.name}: operations not told, for {line.counted.untold}."


def _trained_on(ledger: Ledger) -> Iterator[str]:
    """On how many tokens, training and distillation apart, and of which weights nobody here knows it."""
    parts = {"training": ledger.tokens("train"), "distillation": ledger.tokens("distill")}
    told = [f"{amount_text(tokens)} in {name}" for name, tokens in parts.items() if tokens]
    imported = ledger.imported
    if told:
        whole = amount_text(sum(parts.values()))
        apart = f": {' and '.join(told)}" if parts["distillation"] else ""
        yield f"Trained {'here ' if imported else ''}on {whole} tokens, rows times their length{apart}."
    if imported:
        yield f"{', '.join(imported)}: imported weights; on how many tokens they were trained is not known."
    if pretrained := ledger.tokens("pretrain"):
        yield f"The encoder's own training saw {amount_text(pretrained)} tokens, padding apart."


def _computed_on(ledger: Ledger) -> Iterator[str]:
    found: dict[str, list[str]] = {}
    for line in ledger.lines:
        if line.devices is not None and line.devices.name:
            each = line.devices
            cores = f" ({each.cores} cores)" if each.kind == "cpu" else ""
            found.setdefault(f"{each.count} × {each.name}{cores}", []).append(line.name)
    for devices, names in found.items():
        yield f"On {devices}: {', '.join(names)}."
