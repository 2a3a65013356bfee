"""Operations of training and of distillation, from what their steps were counted to be (``metrics.jsonl``).

A step's rows all go forward and back. How many of them were decode rows is counted where every position of a row
counts; which of the others were self-conditioned is drawn and not kept, so their share stands for them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elf.cache.errors import Damaged
from elf.stages.counted import Counted, Lineage, Network, Part, Untold, fact, read_network, setting, whole
from elf.stages.counted_encoder import encoder_shape
from elf.stages.counted_tokens import count_token_training, read_token_network
from elf.stages.json_files import stream_json_lines
from elf.stages.lineage import Node
from elf.stages.model.flops import Flops, forward_flops
from elf.stages.pace import METRICS
from elf.stages.tally import counts_of

BACKWARD = 3.0
"""Forward and backward together, in forwards."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of all steps; ``decode`` and ``denoise`` among them, counted if ``exact``. ``looks``: measurements of the
    held-out rows, each with two sets of weights."""

    steps: int
    decode: float
    denoise: float
    exact: bool
    looks: int


def count_training(node: Node, lineage: Lineage) -> Counted:
    """Of a train step. Raises Untold."""
    assert node.folder is not None
    if (tokens := read_token_network(node.folder)) is not None:
        return count_token_training(node, lineage, tokens)
    network = read_network(node.folder)
    model, objective = network.model, network.objective
    rows = count_rows(node, network)
    one = forward_flops(model, model.length, self_condition=objective.self_condition > 0)
    again = rows.denoise * objective.self_condition
    drawn = 0.0 < objective.self_condition < 1.0
    if model.dropout > 0 and objective.self_condition > 0:  # two more passes on every row
        again, drawn = 2.0 * rows.steps, False
    parts = [
        Part("gradient passes", rows.steps, _both_ways(rows, one), rows.exact),
        Part("self-condition", again, again * one.forward, rows.exact and not drawn),
        *_heldout(node, lineage, rows, _row_of_a_look(network, one)),
        *_live_encoder(node, lineage, network, rows),
    ]
    return Counted(fact(node, "tokens"), tuple(part for part in parts if part.rows))


def count_distillation(node: Node, lineage: Lineage) -> Counted:
    """Of a round. Raises Untold."""
    assert node.folder is not None
    network = read_network(node.folder)
    rows, one = count_rows(node, network), forward_flops(network.model, network.model.length)
    called = fact(node, "teacher_rows")
    share = called / rows.steps  # calls a row, on average
    decode = rows.decode / rows.steps
    look = (1.0 + share) * (one.trunk + one.attention + one.flow_head) + decode * one.decode_head
    parts = [
        Part("gradient passes", rows.steps, _both_ways(rows, one), rows.exact),
        Part("teacher", called, called * one.forward, True),
        *_heldout(node, lineage, rows, look, alone=True),
        *_live_encoder(node, lineage, network, rows),
    ]
    return Counted(fact(node, "tokens"), tuple(part for part in parts if part.rows))


def count_rows(node: Node, network: Network) -> Rows:
    """What steps and measurements there were. Raises Untold where the lines are gone."""
    assert node.folder is not None
    made = fact(node, "steps") * whole(setting(node, "batch"), "its settings have no batch")
    decoded, denoised, looks = _counts(node.folder / METRICS)
    if not decoded + denoised:
        raise Untold("its metrics.jsonl counts no rows")
    # Distillation counts rows; training positions, all of a row's where rows have no padding that does not count.
    per_row = (decoded + denoised) / made
    exact = per_row in (1, network.model.length)
    return Rows(made, decoded / per_row, denoised / per_row, exact, looks)


def _counts(path: Path) -> tuple[float, float, int]:
    decoded = denoised = 0.0
    looks = 0
    try:
        for line in stream_json_lines(path):
            if "heldout_loss" in line:
                looks += 1
            else:
                one = counts_of(line)
                decoded, denoised = decoded + one[0], denoised + one[1]
    except (Damaged, KeyError, TypeError) as error:
        raise Untold("its metrics.jsonl cannot be read") from error
    return decoded, denoised, looks


def _both_ways(rows: Rows, one: Flops) -> float:
    """Forward and backward: the trunk on every row, each head on its own."""
    heads = rows.denoise * one.flow_head + rows.decode * one.decode_head
    return BACKWARD * (rows.steps * (one.trunk + one.attention) + heads)


def _row_of_a_look(network: Network, one: Flops) -> float:
    """A held-out row, on average over the draws; without dropout, which measurements have none of."""
    objective = network.objective
    again = (1.0 - objective.decode_share) * objective.self_condition
    heads = (1.0 - objective.decode_share + again) * one.flow_head + objective.decode_share * one.decode_head
    return (1.0 + again) * (one.trunk + one.attention) + heads


def _looked(node: Node, lineage: Lineage, rows: Rows) -> int:
    """Held-out rows that went through, as often as they did: each time with two sets of weights."""
    tokens = lineage.above(node, "heldout_tokens")
    if not rows.looks or tokens is None:
        return 0
    held = whole(setting(node, "heldout", "rows"), "its settings do not say how many rows are held out")
    return 2 * rows.looks * min(held, fact(tokens, "rows"))


def _heldout(
    node: Node, lineage: Lineage, rows: Rows, a_row: float, *, alone: bool = False
) -> Iterator[Part]:
    """``alone``: measured once more, as the teacher is."""
    looked = float(_looked(node, lineage, rows))
    if alone and looked:
        looked += looked / (2 * rows.looks)
    yield Part("held-out", looked, looked * a_row, False)


def _live_encoder(node: Node, lineage: Lineage, network: Network, rows: Rows) -> Iterator[Part]:
    """The encoder's passes where nothing was stored of them."""
    told = (
        ("latents", "encoder beside the steps", rows.steps),
        ("heldout_latents", "encoder, held-out", _looked(node, lineage, rows)),
    )
    for role, name, many in told:
        latents = lineage.above(node, role)
        if latents is None or latents.stored:
            continue
        tokens, length = lineage.above(latents, "tokens"), network.model.length
        source = None if tokens is None else setting(tokens, "tokenize", "max_source")
        shape = encoder_shape(latents, lineage)
        a_row = length * shape.flops(length)
        if source is not None:  # what is kept of the conditions goes through by itself besides
            a_row += (1.0 - network.objective.condition_dropout) * source * shape.flops(source)
        yield Part(name, many, many * a_row, source is None)
