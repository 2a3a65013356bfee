"""Which position sees which, and which positions count: made from lengths, in one place, for every stage.

A row is [condition ; target ; padding]: `condition_length_B` positions of condition, `length_B` positions
of condition and target together. Without a condition the first is 0.
Shapes: B batch, L positions (Q query, K key).
"""

import torch
from torch import Tensor

from elf.stages.model.config import Padding


def positions_below(length_B: Tensor, length: int) -> Tensor:
    """(B, L) bool: position < length_B."""
    return torch.arange(length, device=length_B.device)[None] < length_B[:, None]


def is_condition(condition_length_B: Tensor, length: int) -> Tensor:
    """(B, L) bool: the condition's positions."""
    return positions_below(condition_length_B, length)


def is_valid(length_B: Tensor, length: int) -> Tensor:
    """(B, L) bool: condition or target, not padding."""
    return positions_below(length_B, length)


def encoder_mask(
    condition_length_B: Tensor, length_B: Tensor, length: int, *, drop_B: Tensor | None = None
) -> Tensor:
    """(B, L, L) bool, query × key, True = sees. For the frozen encoder.

    A condition query sees condition keys only; every other query, padding too, sees all valid keys. On
    dropped rows (`drop_B`) no other query sees the condition. A query may be left without any key: see
    `additive`.
    """
    _check_lengths(condition_length_B, length_B, length)
    condition_BL = is_condition(condition_length_B, length)
    valid_BL = is_valid(length_B, length)
    seen_by_others_BL = valid_BL
    if drop_B is not None:
        seen_by_others_BL = valid_BL & ~(condition_BL & drop_B.to(condition_BL.device)[:, None])
    return torch.where(condition_BL[:, :, None], condition_BL[:, None, :], seen_by_others_BL[:, None, :])


def additive(mask_BQK: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """(B, 1, L, L) to add to attention scores: 0 where seen, the dtype's lowest finite number elsewhere.

    A query without any key then attends uniformly over ALL keys, padding included: every score is the same
    lowest number. (−inf would give NaN; a boolean mask in a fused kernel gives zeros or NaN.)
    """
    scores = torch.zeros(mask_BQK.shape, dtype=dtype, device=mask_BQK.device)
    return scores.masked_fill_(~mask_BQK, torch.finfo(dtype).min)[:, None]


def loss_mask(condition_length_B: Tensor, length_B: Tensor, length: int, padding: Padding) -> Tensor:
    """(B, L) bool: positions that count in the loss. Never the condition; padding only under "eos"."""
    _check_lengths(condition_length_B, length_B, length)
    target_BL = ~is_condition(condition_length_B, length)
    return target_BL if padding == "eos" else target_BL & is_valid(length_B, length)


def _check_lengths(condition_length_B: Tensor, length_B: Tensor, length: int) -> None:
    if condition_length_B.shape != length_B.shape:
        raise ValueError(
            f"{tuple(condition_length_B.shape)} condition lengths beside {tuple(length_B.shape)} row lengths; "
            "one of each per row is needed"
        )
    if length_B.device.type != "cpu":
        return  # A check on the device would make every step wait; lengths are checked where they are read.
    wrong_B = (condition_length_B < 0) | (condition_length_B > length_B) | (length_B > length)
    if bool(wrong_B.any()):
        row = int(wrong_B.nonzero()[0])
        raise ValueError(
            f"row {row} has condition length {int(condition_length_B[row])} and valid length "
            f"{int(length_B[row])}; each row needs 0 ≤ condition ≤ valid ≤ {length}"
        )
