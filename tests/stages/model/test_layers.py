"""The gated feed-forward part is its formula to the bit, and keeps less of it for the backward pass."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elf.stages.model.layers import SwiGLU

WIDTH, INNER = 24, 40


def plain(layer: SwiGLU, x: Tensor) -> Tensor:
    gate, value = layer.gate_value(x).chunk(2, dim=-1)
    return layer.out(F.silu(gate) * value)


def made(dtype: torch.dtype) -> tuple[SwiGLU, Tensor]:
    generator = torch.Generator().manual_seed(0)
    layer = SwiGLU(WIDTH, INNER).to(dtype)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, generator=generator)
    x = torch.randn(3, 50, WIDTH, generator=generator).to(dtype)
    return layer, x.requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_values_and_gradients_are_those_of_the_formula(dtype: torch.dtype) -> None:
    layer, x = made(dtype)
    inputs = [x, *layer.parameters()]
    ours, wanted = layer(x), plain(layer, x)
    assert torch.equal(ours, wanted)
    weight = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    for mine, theirs in zip(
        torch.autograd.grad((ours * weight).sum(), inputs),
        torch.autograd.grad((wanted * weight).sum(), inputs),
        strict=True,
    ):
        assert torch.equal(mine, theirs)


def test_one_tensor_less_is_kept() -> None:
    layer, x = made(torch.float32)
    kept = [saved_bytes(layer, x, forward) for forward in (SwiGLU.__call__, plain)]
    assert kept[1] - kept[0] == x[..., 0].numel() * INNER * 4


def saved_bytes(layer: SwiGLU, x: Tensor, forward: Callable[[SwiGLU, Tensor], Tensor]) -> int:
    """Of all storages that a forward pass keeps, each counted once."""
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = forward(layer, x)  # alive until the storages were counted
    assert result.requires_grad
    return sum(sizes.values())
