"""Muon against independent formulas, Newton–Schulz against singular values, clip and shares."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from elf.stages.model.network import Network
from elf.stages.model.optim import Muon, adamw, clip, set_learning_rate
from elf.stages.model.orthogonal import COEFFICIENTS, STEPS, orthogonalise
from tests.stages.model.tiny import tiny_network

SHAPES = [
    (8, 8),
    (6, 9),
    (9, 6),
    (4, 40),
    (40, 4),
    (1, 5),
    (3, 80),
    (257, 257),
    (257, 390),
    (390, 257),
    (9000, 260),
]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def by_singular_values(matrix: Tensor) -> Tensor:
    """Newton–Schulz is an odd polynomial of the singular values: the same through the decomposition."""
    a, b, c = COEFFICIENTS
    u, s, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    s = s / (s.norm() + 1e-8)
    for _ in range(STEPS):
        s = a * s + b * s**3 + c * s**5
    return (u * s) @ v


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [1, 3, None])
def test_orthogonalise(shape: tuple[int, int], rank: int | None) -> None:
    matrix = normal(*shape)
    if rank is not None:
        matrix = normal(shape[0], rank) @ normal(rank, shape[1], seed=1)
    assert torch.allclose(orthogonalise(matrix), by_singular_values(matrix), atol=1e-10)
    single = orthogonalise(matrix.float())
    assert single.dtype == torch.float32
    assert torch.allclose(single.double(), by_singular_values(matrix), atol=1e-4)


@pytest.mark.parametrize(
    "shape", [(64, 64), (48, 200), (200, 48), (257, 257), (256, 600), (64, 9000), (9000, 64)]
)
def test_float32_stays_accurate_on_bad_gradients(shape: tuple[int, int]) -> None:
    """Nearly low-rank matrices, the long ones through their Gram matrix."""
    matrix = normal(shape[0], 3) @ normal(3, shape[1], seed=1) + 1e-4 * normal(*shape, seed=2)
    exact = by_singular_values(matrix.float())
    error = (orthogonalise(matrix.float()).double() - exact).norm() / exact.norm()
    assert error < 1e-4


def test_orthogonalise_small_types_and_zero() -> None:
    matrix = normal(6, 9, dtype=torch.bfloat16)
    got = orthogonalise(matrix)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, orthogonalise(matrix.float()).bfloat16())
    assert not orthogonalise(torch.zeros(3, 5)).any()


def with_gradients(network: Network, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)


def test_the_rest_is_nesterov_adam() -> None:
    """torch's NAdam with its momentum schedule switched off is the same rule."""
    ours, theirs = (nn.Parameter(normal(5)) for _ in range(2))
    muon = Muon([ours], 0.02)
    nadam = torch.optim.NAdam([theirs], 0.02, betas=(0.9, 0.999), eps=1e-8, momentum_decay=1e9)
    for step in range(6):
        ours.grad = normal(5, seed=step)
        theirs.grad = ours.grad.clone()
        muon.step()
        nadam.step()
    assert torch.allclose(ours, theirs, rtol=1e-6)


def test_matrices_by_hand() -> None:
    """Two steps of the rule as it is written."""
    matrix = nn.Parameter(normal(6, 3))
    expected, momentum = matrix.detach().clone(), torch.zeros(6, 3, dtype=torch.float64)
    muon = Muon([matrix], 0.1)
    for k in (1, 2):
        gradient = normal(6, 3, seed=k)
        momentum = 0.95 * momentum + 0.05 * gradient
        ahead = 0.95 * momentum / (1 - 0.95 ** (k + 1)) + 0.05 * gradient / (1 - 0.95**k)
        expected -= 0.1 * math.sqrt(6 / 3) * by_singular_values(ahead)
        matrix.grad = gradient
        muon.step()
    assert torch.allclose(matrix, expected)


def test_wide_matrices_are_not_scaled_down() -> None:
    matrix = nn.Parameter(torch.zeros(3, 6, dtype=torch.float64))
    matrix.grad = normal(3, 6)
    Muon([matrix], 1.0).step()
    assert torch.allclose(matrix, -by_singular_values(matrix.grad))


def test_absent_gradients_count_as_zero() -> None:
    network, same = tiny_network(), tiny_network()
    optimisers = [Muon(n.parameters(), 0.01) for n in (network, same)]
    for step in range(3):
        for n, optimiser in zip((network, same), optimisers, strict=True):
            with_gradients(n, step)
            if step == 1:
                n.flow_head.weight.grad = None if n is network else torch.zeros_like(n.flow_head.weight)
            optimiser.step()
    assert torch.equal(network.flow_head.weight, same.flow_head.weight)
    state = optimisers[0].state[network.flow_head.weight]["momentum"]
    assert torch.equal(state, optimisers[1].state[same.flow_head.weight]["momentum"])


def test_state_goes_on() -> None:
    """Saved and loaded between steps, the run is the same."""
    network = tiny_network()
    optimiser = Muon(network.parameters(), 0.01)
    with_gradients(network, 0)
    optimiser.step()
    saved, other = copy.deepcopy(optimiser.state_dict()), tiny_network()
    other.load_state_dict(network.state_dict())
    again = Muon(other.parameters(), 0.5)
    again.load_state_dict(saved)
    for n, o in ((network, optimiser), (other, again)):
        with_gradients(n, 1)
        o.step()
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), other.parameters(), strict=True))


def test_shared_matrices() -> None:
    """Two processes, each orthogonalising every second matrix, end with the weights of one."""
    alone, shares = tiny_network(), [tiny_network(), tiny_network()]
    board: list[list[Tensor]] = []
    first = Muon(shares[0].parameters(), 0.01, share=(0, 2), exchange=board.append)

    def add_up(directions: list[Tensor]) -> None:
        for mine, theirs in zip(directions, board.pop(), strict=True):
            assert not (mine.any() and theirs.any())
            mine += theirs

    second = Muon(shares[1].parameters(), 0.01, share=(1, 2), exchange=add_up)
    for network, optimiser in (
        (alone, Muon(alone.parameters(), 0.01)),
        (shares[0], first),
        (shares[1], second),
    ):
        with_gradients(network, 0)
        optimiser.step()
    assert all(torch.equal(a, b) for a, b in zip(alone.parameters(), shares[1].parameters(), strict=True))
    with pytest.raises(ValueError, match="an exchange of their directions is needed"):
        Muon(alone.parameters(), 0.01, share=(0, 2))


def test_adamw_settings_and_absent_gradients() -> None:
    network = tiny_network()
    optimiser = adamw(network.parameters(), 0.01, weight_decay=0.1)
    before = network.flow_head.weight.clone()
    with_gradients(network, 0)
    network.flow_head.weight.grad = None
    optimiser.step()
    assert torch.equal(network.flow_head.weight, before)
    group = optimiser.param_groups[0]
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.9, 0.95), 1e-8, 0.1)


def test_learning_rate_is_set_everywhere() -> None:
    optimiser = Muon(tiny_network().parameters(), 0.01)
    set_learning_rate(optimiser, 0.25)
    assert [group["lr"] for group in optimiser.param_groups] == [0.25, 0.25]


@pytest.mark.parametrize("limit", [0.5, 1e6])
def test_clip(limit: float) -> None:
    network = tiny_network()
    with_gradients(network, 0)
    network.flow_head.bias.grad = None
    gradients = [p.grad.clone() for p in network.parameters() if p.grad is not None]
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    assert torch.allclose(clip(network.parameters(), limit), norm)
    after = [p.grad for p in network.parameters() if p.grad is not None]
    factor = min(1.0, limit / (float(norm) + 1e-6))
    assert all(torch.allclose(a, g * factor) for a, g in zip(after, gradients, strict=True))
    assert network.flow_head.bias.grad is None
