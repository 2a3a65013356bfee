"""Decode mode, chosen positions, and the end-of-text rule."""

import pytest
import torch

from elf.stages.model.config import SamplerConfig
from elf.stages.model.decoding import cut_after_end, decode, shift_left
from tests.stages.model.tiny import SHAPE, tiny_network

GENERATOR = torch.Generator().manual_seed(0)
Z = torch.randn(3, SHAPE["length"], SHAPE["width"], generator=GENERATOR, dtype=torch.float64)


@pytest.mark.parametrize("self_condition", [True, False])
def test_decode_mode(self_condition: bool) -> None:
    """Time 1, gate 1, ω told, a zero self-condition half; d wide where there is none."""
    network, config = tiny_network(), SamplerConfig(guidance=2.0, self_condition=self_condition)
    ones = torch.ones(3, dtype=torch.float64)
    given = torch.cat([Z, torch.zeros_like(Z)], dim=-1) if self_condition else Z
    logits = network.logits(network(given, ones, guidance_B=2 * ones, mode_B=ones).h_BLH)
    assert torch.equal(decode(network, Z, config), logits.argmax(dim=-1))


def test_chosen_positions() -> None:
    network, config = tiny_network(), SamplerConfig()
    every, start = decode(network, Z, config), torch.tensor([0, 2, 3])
    some = decode(network, Z, config, start_B=start, count=4)
    for row, first in enumerate(start.tolist()):
        assert torch.equal(some[row], every[row, first : first + 4])
    assert torch.equal(some, shift_left(every, start, 0)[:, :4])
    with pytest.raises(ValueError, match="positions up to 7 asked of rows 7 long"):
        decode(network, Z, config, start_B=start + 1, count=4)


def test_cut_after_end() -> None:
    ids = torch.tensor([[1, 5, 6], [5, 1, 6], [5, 6, 7], [5, 6, 1]])
    assert cut_after_end(ids, 1, 0).tolist() == [[0, 0, 0], [5, 0, 0], [5, 6, 7], [5, 6, 0]]
    assert cut_after_end(ids, 1, 1).tolist() == [[1, 1, 1], [5, 1, 1], [5, 6, 7], [5, 6, 1]]


def test_shift_left() -> None:
    ids = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    assert shift_left(ids, torch.tensor([0, 1, 5]), -1).tolist() == [[1, 2, 3], [5, 6, -1], [-1, -1, -1]]
