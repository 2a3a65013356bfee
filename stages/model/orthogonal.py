"""Newton–Schulz: the nearest matrix to X with all singular values near 1 (Muon's direction).

Five steps of X ← aX + (bA + cA²)X with A = XXᵀ, in float32 or wider. A long matrix is iterated through its small
Gram matrix A alone: the steps' polynomials are multiplied up and applied to X once. In float32 a Gram matrix loses the
small singular values, so it is made anew, and applied, after three steps; on a CPU that of a very long matrix, whose
own products are cheap beside X's, is float64 instead. Every product but the last is symmetric, so on a CPU only the
blocks on and above its diagonal are computed. Shapes: M short side, N long side.
"""

import torch
from torch import Tensor

from elf.stages.model.config import GRAM_RATIO, PANEL, PANELS, WIDE_GRAM_RATIO

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5
EPSILON = 1e-8
GRAM_RESTART = 3
SLICE = 4096
"""Columns of X that are float64 at a time."""


def orthogonalise(matrix: Tensor, *, steps: int = STEPS) -> Tensor:
    """The direction of a 2-D gradient, in its own shape and dtype (bfloat16 and float16 are computed in float32).
    A zero matrix stays zero."""
    wide = matrix if matrix.dtype in (torch.float32, torch.float64) else matrix.float()
    tall = wide.shape[0] > wide.shape[1]
    x_MN = wide.mT if tall else wide
    # The sum of squares adds in pairs; vector_norm does not, and is off by 1e-4 on millions of numbers.
    x_MN = x_MN / (x_MN.square().sum().sqrt() + EPSILON)
    ratio = x_MN.shape[1] / x_MN.shape[0]
    if ratio < GRAM_RATIO:
        for _ in range(steps):
            x_MN = _plain_step(x_MN)
    elif ratio >= WIDE_GRAM_RATIO and x_MN.device.type == "cpu":
        x_MN = _gram_steps(x_MN, _wide_gram(x_MN), steps)
    else:
        for done in range(0, steps, GRAM_RESTART):
            x_MN = _gram_steps(x_MN, _symmetric(x_MN, x_MN.mT), min(GRAM_RESTART, steps - done))
    return (x_MN.mT if tall else x_MN).to(matrix.dtype)


def _plain_step(x_MN: Tensor) -> Tensor:
    a, b, c = COEFFICIENTS
    gram_MM = _symmetric(x_MN, x_MN.mT)
    return torch.addmm(x_MN, _symmetric(gram_MM, gram_MM).mul_(c).add_(gram_MM, alpha=b), x_MN, beta=a)


def _wide_gram(x_MN: Tensor) -> Tensor:
    """XXᵀ in float64."""
    gram_MM = x_MN.new_zeros(x_MN.shape[0], x_MN.shape[0], dtype=torch.float64)
    for part_MN in x_MN.split(SLICE, dim=1):
        wide_MN = part_MN.double()
        gram_MM += _symmetric(wide_MN, wide_MN.mT)
    return gram_MM


def _gram_steps(x_MN: Tensor, gram_MM: Tensor, steps: int) -> Tensor:
    """The plain steps, on the Gram matrix R: P = aI + bR + cR² is symmetric and commutes with R, so that X ← PX makes
    R ← PRP, and the product of all P is applied at the end."""
    a, b, c = COEFFICIENTS
    product_MM: Tensor | None = None
    for left in reversed(range(steps)):
        factor_MM = _symmetric(gram_MM, gram_MM).mul_(c).add_(gram_MM, alpha=b)
        factor_MM.diagonal().add_(a)
        product_MM = factor_MM if product_MM is None else _symmetric(factor_MM, product_MM)
        if left:
            gram_MM = _symmetric(_symmetric(factor_MM, gram_MM), factor_MM)
    if product_MM is None:
        return x_MN
    product_MM = product_MM.to(x_MN.dtype)
    return (x_MN.mT @ product_MM).mT if x_MN.mT.is_contiguous() else product_MM @ x_MN


def _symmetric(left_MN: Tensor, right_NM: Tensor) -> Tensor:
    """The product of matrices of which it is known that it is symmetric."""
    size = left_MN.shape[0]
    panels = min(PANELS, size // PANEL)
    if left_MN.device.type != "cpu" or panels < 2:
        return left_MN @ right_NM
    product_MM = left_MN.new_empty(size, size)
    ends = [size * (panel + 1) // panels for panel in range(panels)]
    for start, end in zip([0, *ends], ends, strict=False):
        torch.mm(left_MN[start:end], right_NM[:, start:], out=product_MM[start:end, start:])
        product_MM[end:, start:end] = product_MM[start:end, end:].mT
    return product_MM
