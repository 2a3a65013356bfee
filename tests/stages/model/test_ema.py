"""The average of the weights."""

import pytest
import torch

from elf.stages.model.ema import Ema
from tests.stages.model.tiny import tiny_network


def test_average() -> None:
    network = tiny_network()
    ema = Ema(network, 0.9)
    name = "flow_head.weight"
    start = network.flow_head.weight.detach().clone()
    with torch.no_grad():
        network.flow_head.weight += 1.0
    assert torch.equal(ema.tensors[name], start)
    ema.update(network)
    assert torch.allclose(ema.tensors[name], start + 0.1)
    ema.update(network)
    assert torch.allclose(ema.tensors[name], start + 0.19)
    assert ema.tensors.keys() == dict(network.named_parameters()).keys()


def test_applied_and_back() -> None:
    network = tiny_network()
    ema = Ema(network, 0.5)
    with torch.no_grad():
        network.flow_head.weight.zero_()
    averaged = ema.tensors["flow_head.weight"].clone()
    with ema.applied(network):
        assert torch.equal(network.flow_head.weight, averaged)
    assert not network.flow_head.weight.any()
    assert torch.equal(ema.tensors["flow_head.weight"], averaged)


def test_load_is_strict() -> None:
    network = tiny_network()
    ema, saved = Ema(network), {n: p.detach() + 1 for n, p in network.named_parameters()}
    ema.load(saved)
    assert torch.equal(ema.tensors["flow_head.bias"], saved["flow_head.bias"])
    with pytest.raises(ValueError, match=r"differ in 1 names, the first is flow_head\.bias"):
        ema.load({n: t for n, t in saved.items() if n != "flow_head.bias"})
    with pytest.raises(ValueError, match=r"the saved EMA of flow_head.bias has shape \(1,\)"):
        ema.load(saved | {"flow_head.bias": torch.zeros(1)})


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_decay_is_checked(decay: float) -> None:
    with pytest.raises(ValueError, match="at least 0 and below 1"):
        Ema(tiny_network(), decay)
