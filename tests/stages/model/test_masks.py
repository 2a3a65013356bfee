"""Masks against the rule written as loops."""

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from elf.stages.model.masks import additive, encoder_mask, is_condition, is_valid, loss_mask

LENGTH = 6
ROWS = st.lists(
    st.tuples(st.integers(0, LENGTH), st.integers(0, LENGTH), st.booleans()), min_size=1, max_size=4
)


@hypothesis.given(ROWS)
@hypothesis.settings(max_examples=50, deadline=None)
def test_rules(rows: list[tuple[int, int, bool]]) -> None:
    rows = [(min(a, b), max(a, b), drop) for a, b, drop in rows]
    condition, valid = torch.tensor([r[0] for r in rows]), torch.tensor([r[1] for r in rows])
    drop = torch.tensor([r[2] for r in rows])
    mask = encoder_mask(condition, valid, LENGTH, drop_B=drop)
    pad, eos = (loss_mask(condition, valid, LENGTH, padding) for padding in ("pad", "eos"))
    for b, (c, n, dropped) in enumerate(rows):
        for q in range(LENGTH):
            assert pad[b, q] == (c <= q < n)
            assert eos[b, q] == (q >= c)
            for k in range(LENGTH):
                sees = k < c if q < c else k < n and not (dropped and k < c)
                assert mask[b, q, k] == sees
    assert torch.equal(is_condition(condition, LENGTH).sum(dim=1), condition)
    assert torch.equal(is_valid(valid, LENGTH).sum(dim=1), valid)
    if not drop.any():
        assert torch.equal(mask, encoder_mask(condition, valid, LENGTH))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_additive(dtype: torch.dtype) -> None:
    """A query without keys attends uniformly over all of them; any other over its own only."""
    mask = encoder_mask(torch.tensor([2]), torch.tensor([2]), LENGTH, drop_B=torch.tensor([True]))
    assert not mask[0, 3].any()
    added = additive(mask, dtype)
    assert added.shape == (1, 1, LENGTH, LENGTH)
    assert added.isfinite().all()
    scores = torch.randn(LENGTH, generator=torch.Generator().manual_seed(0)).to(dtype)
    weights = (scores + added[0, 0]).softmax(dim=-1)
    assert torch.allclose(weights[3], torch.full((LENGTH,), 1 / LENGTH, dtype=dtype))
    assert torch.equal(weights[0, 2:], torch.zeros(LENGTH - 2, dtype=dtype))


def test_lengths_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="row 1 has condition length 4 and valid length 3"):
        encoder_mask(torch.tensor([0, 4]), torch.tensor([1, 3]), LENGTH)
    with pytest.raises(ValueError, match="0 ≤ condition ≤ valid ≤ 6"):
        loss_mask(torch.tensor([0]), torch.tensor([7]), LENGTH, "pad")
    with pytest.raises(ValueError, match="one of each per row"):
        encoder_mask(torch.tensor([0]), torch.tensor([1, 3]), LENGTH)
