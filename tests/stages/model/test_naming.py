"""The authors' names: both ways, byte for byte, strict at the door."""

import re
from typing import Any

import pytest
import torch

from elf.stages.model.naming import bare, config_from_authors, from_authors, our_name, their_name, to_authors
from elf.stages.model.network import Network
from tests.stages.model.tiny import tiny_network


def theirs(network: Network) -> dict[str, torch.Tensor]:
    return to_authors({name: p.detach() for name, p in network.named_parameters()})


@pytest.mark.parametrize("changed", [{}, {"guidance_tokens": 0}, {"mode_tokens": 0}])
def test_there_and_back(changed: dict[str, Any]) -> None:
    network = tiny_network(**changed)
    exported = theirs(network)
    assert exported["proj_kernel"].shape == network.decode_projection.weight.T.shape
    back = from_authors(exported)
    named = dict(network.named_parameters())
    assert back.keys() == named.keys()
    assert all(torch.equal(back[name], named[name]) for name in named)
    again = to_authors(back)
    assert all(torch.equal(again[name], exported[name]) for name in exported)
    assert all(tensor.is_contiguous() for tensor in again.values())
    config = config_from_authors(exported, length=network.config.length)
    assert config == network.config


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_prefixes_fall_off(prefix: str) -> None:
    exported = {prefix + name: tensor for name, tensor in theirs(tiny_network()).items()}
    assert from_authors(exported).keys() == dict(tiny_network().named_parameters()).keys()
    assert bare(prefix + "mode_tokens") == "mode_tokens"
    assert config_from_authors(exported, length=7) == tiny_network().config


def test_rotary_tables_tell_the_length() -> None:
    exported = theirs(tiny_network()) | {"feat_rope.freqs_cos": torch.zeros(13, 8)}
    assert config_from_authors(exported).length == 7
    assert "feat_rope.freqs_cos" not in from_authors(exported)
    with pytest.raises(ValueError, match="give the length"):
        config_from_authors(theirs(tiny_network()))


def test_strangers_are_refused() -> None:
    for name in ("blocks.0.attn.qkv.scale", "blocks.x.norm1.weight", "optimizer", "blocks.0.mlp.w4.bias"):
        with pytest.raises(ValueError, match=re.escape(f"no parameter is called {name}")):
            our_name(name)
    with pytest.raises(ValueError, match=r"no parameter is called trunk.blocks.0.modulation.weight"):
        their_name("trunk.blocks.0.modulation.weight")
    with pytest.raises(ValueError, match="no tensor unembed_kernel"):
        config_from_authors({})
    exported = theirs(tiny_network())
    with pytest.raises(ValueError, match=r"trunk\.mode_tokens twice"):
        from_authors(exported | {"module.mode_tokens": exported["mode_tokens"]})
