"""Compiled blocks and blocks computed again: the same numbers, few compiled forms, less memory."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from elf.stages.model.config import ObjectiveConfig
from elf.stages.model.draws import Draws, draw
from elf.stages.model.network import Network
from elf.stages.model.objective import loss
from elf.stages.model.speeding import SHAPES, checkpoint_blocks, compile_blocks, few_rows
from tests.stages.model.tiny import SHAPE, tiny_batch, tiny_network

ROWS = 16
OBJECTIVE = ObjectiveConfig()
FLOATS: dict[str, Any] = {"dtype": torch.float32}
COMPILING = [
    "ignore:The .grad attribute of a Tensor:UserWarning",
    "ignore:`torch.jit.script:DeprecationWarning",
]
quiet = pytest.mark.filterwarnings(*COMPILING)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    with torch._dynamo.config.patch():
        yield
    torch._dynamo.reset()


def draws_of(step: int) -> Draws:
    return draw(3, step, range(ROWS), length=SHAPE["length"], width=SHAPE["width"], objective=OBJECTIVE)


def step_of(network: Network, step: int = 0, *, bf16: bool = False, **autocast: Any) -> dict[str, Tensor]:
    """Loss and gradients by name."""
    network.zero_grad()
    batch = tiny_batch(ROWS, seed=step, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16, **autocast):
        total = loss(network, batch, draws_of(step), OBJECTIVE, row_multiple=few_rows(ROWS)).total
    total.backward()
    named = network.named_parameters()
    return {"loss": total.detach()} | {name: p.grad for name, p in named if p.grad is not None}


def assert_close(have: dict[str, Tensor], want: dict[str, Tensor], tolerance: float) -> None:
    assert have.keys() == want.keys()
    scale = max(float(each.norm()) for each in want.values())
    for name, wanted in want.items():
        error = float((have[name] - wanted).norm())
        assert error <= tolerance * max(float(wanted.norm()), 1e-3 * scale), name


@quiet
def test_one_form_for_every_shape_whatever_the_depth() -> None:
    """20 steps on other rows each, held-out passes and averaged weights between: a compiled form for every number of
    rows that was met, with and without gradient, and none besides. Names stay."""
    network, plain = (tiny_network(depth=3, **FLOATS) for _ in range(2))
    names = list(network.state_dict())
    compile_blocks(network, backend="eager")
    met: set[tuple[int, bool, bool]] = set()
    network.register_forward_hook(
        lambda net, given, _: met.add((len(given[0]), torch.is_grad_enabled(), net.training))
    )
    counters.clear()
    for step in range(20):
        assert torch.equal(step_of(network, step)["loss"], step_of(plain, step)["loss"])
        if step == 5:
            with torch.no_grad():
                for each in (network, plain):
                    for parameter in each.parameters():
                        parameter.mul_(0.9)
            loss(network.eval(), tiny_batch(ROWS, dtype=torch.float32), draws_of(step), OBJECTIVE)
            network.train()
    assert counters["stats"]["unique_graphs"] == len(met)
    assert {rows for rows, _, training in met if training} <= {4, 8, 12, ROWS}
    assert list(network.state_dict()) == names


def test_a_chosen_part_meets_few_multiples() -> None:
    for rows, most in ((1, 1), (4, 2), (16, 4), (64, 5), (512, 7), (2048, 7)):
        sizes: set[int] = set()
        for step in range(300):
            uniform_B = torch.rand(rows, generator=torch.Generator().manual_seed(step))
            sizes.add(-(-int((uniform_B < 0.4).sum()) // few_rows(rows)))
        assert len(sizes - {0}) <= most, rows
    assert [few_rows(rows) for rows in (0, 1, 3, 4, 15, 16, 64, 512)] == [1, 1, 1, 2, 2, 4, 8, 16]
    assert SHAPES >= 4 * 2 * 7


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize(
    "changed", [{}, {"dropout": 0.3}, {"conditioning": "adaln", "decoder": "separate"}], ids=str
)
def test_blocks_computed_again_give_the_same_bits(changed: dict[str, Any], bf16: bool) -> None:
    kept, again = (tiny_network(**FLOATS, **changed) for _ in range(2))
    checkpoint_blocks(again)
    passes: list[bool] = []
    again.trunk.blocks[1].register_forward_pre_hook(lambda *_: passes.append(torch.is_grad_enabled()))
    want, have = step_of(kept, bf16=bf16), step_of(again, bf16=bf16)
    assert have.keys() == want.keys()
    assert all(torch.equal(have[name], want[name]) for name in want)
    assert passes.count(True) == 2


def test_blocks_computed_again_keep_their_input_only() -> None:
    def kept(change: Callable[[Network], None]) -> int:
        network = tiny_network(depth=8, **FLOATS)
        change(network)
        held: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            held[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            total = loss(network, tiny_batch(ROWS, dtype=torch.float32), draws_of(0), OBJECTIVE).total
        total.backward()
        return sum(held.values())

    assert 3 * kept(checkpoint_blocks) < kept(lambda _: None)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_pass_without_gradient_takes_none_from_the_next(checkpointing: bool) -> None:
    """Autocast keeps casts of weights; one made by the pass without gradient must not serve the one with it."""
    network, single = tiny_network(**FLOATS), tiny_network(**FLOATS)
    if checkpointing:
        checkpoint_blocks(network)
    assert bool((draws_of(0).coin_B & ~draws_of(0).decode_B).any())
    have, want = step_of(network, bf16=True), step_of(single, bf16=True, cache_enabled=False)
    assert have.keys() == want.keys() >= dict(network.named_parameters()).keys()
    assert all(torch.equal(have[name], want[name]) for name in want)
    assert_close(have, step_of(single), 0.2)


@quiet
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("changed", "bf16"), [({}, False), ({"dropout": 0.3}, True)], ids=str)
def test_compiled_and_computed_again_is_the_same_to_rounding(changed: dict[str, Any], bf16: bool) -> None:
    """Dropout draws the same, too."""
    plain, network = (tiny_network(**FLOATS, **changed) for _ in range(2))
    want = step_of(plain, bf16=bf16)
    compile_blocks(network)
    assert_close(step_of(network, bf16=bf16), want, 0.1 if bf16 else 1e-4)
    checkpoint_blocks(network)
    assert_close(step_of(network, bf16=bf16), want, 0.1 if bf16 else 1e-4)
