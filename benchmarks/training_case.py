"""The two ways to train one network, side by side: equal weights, rows and draws; what they find, what they cost."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from literal_step import T5_SMALL, LiteralEncoder, LiteralStep, gradients, largest_error
from measuring import Bar, Stopwatch
from product_step import Prepared, ProductStep, make_corpus
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from elf.stages.feeding import Fed
from elf.stages.model.config import ObjectiveConfig
from elf.stages.model.draws import Draws, draw
from elf.stages.model.flops import forward_flops
from elf.stages.team import Team
from elf.stages.workload import EncoderShape

LR = 0.002
ENCODER = EncoderShape(T5_SMALL["d_model"], T5_SMALL["d_model"], 2 * T5_SMALL["d_ff"], T5_SMALL["num_layers"])


@dataclass(frozen=True, slots=True)
class Case:
    """Both sides of one network, length and batch."""

    prepared: Prepared
    literal: LiteralStep
    product: ProductStep
    watch: Stopwatch
    steps: range

    @classmethod
    def of(
        cls,
        folder: Path,
        team: Team,
        encoder: LiteralEncoder,
        model: Mapping[str, Any],
        *,
        batch: int,
        **size: int,
    ) -> "Case":
        steps = typical(batch, size["steps"])
        corpus = make_corpus(
            folder / "corpus", encoder.states, rows=2 * batch, batch=batch, length=size["length"]
        )
        settings = {"model": model, "batch": batch, "optim": {"lr": LR}}
        prepared, other = (
            Prepared.of(folder / side, corpus.inputs, team, settings) for side in ("ours", "theirs")
        )
        recipe, scale, watch = prepared.recipe, prepared.recipe.latents.scale, Stopwatch()
        literal = LiteralStep(other.network, encoder, recipe.objective, watch, mean=scale.mean, std=scale.std)
        return cls(prepared, literal, ProductStep(prepared, watch), watch, steps)

    def fed(self, steps: range | None = None) -> Iterator[Fed]:
        with self.prepared.feed(self.steps if steps is None else steps) as feed:
            yield from feed


def typical(batch: int, steps: int, seed: int = 0) -> range:
    """The first steps in which together as many rows of each kind come as do on average, rounded."""
    objective = ObjectiveConfig()
    decode = objective.decode_share
    wanted = [round(steps * batch * share) for share in (decode, (1 - decode) * objective.self_condition)]
    for first in range(10_000):
        chosen = range(first, first + steps)
        made = [draw(seed, step, range(batch), length=1, width=1, objective=objective) for step in chosen]
        if wanted == [sum(counted(draws)[kind] for draws in made) for kind in (0, 1)]:
            print(
                f"steps {chosen.start} to {chosen.stop - 1}: {wanted[0]} of {steps * batch} rows decode, "
                f"{wanted[1]} condition themselves"
            )
            return chosen
    raise RuntimeError(f"no {steps} steps have {wanted} decode and self-conditioned rows")


def counted(draws: Draws) -> tuple[int, int]:
    """Decode rows, self-conditioned denoise rows."""
    return int(draws.decode_B.sum()), int((draws.coin_B & ~draws.decode_B).sum())


def product_flops(_: object, left: Sequence[int], right: Sequence[int], **__: object) -> int:
    """Of a product that is added in place, which the counter does not know."""
    return 2 * left[0] * left[1] * right[1]


@contextmanager
def flops() -> Iterator[FlopCounterMode]:
    """Counts; attention is made of products that the counter knows."""
    in_place: dict[Any, Any] = {torch.ops.aten.addmm_: product_flops}
    with (
        sdpa_kernel(SDPBackend.MATH),
        FlopCounterMode(display=False, custom_mapping=in_place) as counter,
    ):
        yield counter


def compare(name: str, case: Case) -> list[Bar]:
    """Loss and gradients of the first step, and the operations that it takes; warms both sides up."""
    fed = next(case.fed())
    with flops() as encoder:
        batch = case.literal.encode(fed.raw.ids_BL)
    with flops() as literal:
        theirs = case.literal.add_gradients(batch, fed.draws)
    with flops() as product:
        ours = case.product.add_gradients(fed)
    spent = [each.get_total_flops() for each in (encoder, literal, product)]
    config = case.prepared.network.config
    one = forward_flops(config, config.length)
    row = config.length * ENCODER.flops(config.length) + 5 * one.forward + 3 * one.decode_head
    off = abs((spent[0] + spent[1]) / (row * len(fed.draws.t_B)) - 1)
    said = ", ".join(
        f"{side} {number / 1e9:,.0f}"
        for side, number in zip(("encoder", "literal", "product"), spent, strict=True)
    )
    print(f"{name}: {said} GFLOP a step without optimiser")
    error = largest_error(gradients(case.product.network), gradients(case.literal.network))
    return [
        Bar(f"{name}: loss, relative difference", abs(ours - theirs) / abs(theirs), 1e-6, at_most=True),
        Bar(f"{name}: gradients, relative difference", error, 1e-5, at_most=True),
        Bar(f"{name}: literal's operations, off the formula", off, 0.02, at_most=True),
        Bar(f"{name}: operations, literal / product", spent[1] / spent[2], 1.5),
    ]


def ratio(name: str, part: str, watch: Stopwatch, target: float) -> Bar:
    theirs, ours = watch.mean(f"literal {part}"), watch.mean(f"product {part}")
    print(f"{name}, {part}: literal {theirs:.2f} s, product {ours:.2f} s a step")
    return Bar(f"{name}: {part}, literal / product", theirs / ours, target)


def seconds_of(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
