"""Newton–Schulz: the nearest matrix to X with all singular values near 1 (Muon's direction).

Five steps of X ← aX + (bA + cA²)X with A = XXᵀ, in float32 or wider. A long matrix is iterated through its small
Gram matrix A alone: the steps' polynomials are multiplied up and applied to X once. In float32 a Gram matrix loses the
small singular values, so it is made anew, and applied, after three steps; on a CPU that of a very long matrix, beside
which it is small, is float64 instead, and its eigenvalues are iterated. Every product but the last is symmetric, so
on a CPU only the blocks on and above its diagonal are computed. Shapes: M short side, N long side.
"""

from typing import cast

import torch
from torch import Tensor

from elf.stages.model.config import GRAM_RATIO, PANEL, PANELS, SPECTRAL_RATIO

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5
EPSILON = 1e-8
GRAM_RESTART = 3
SLICE = 2048
"""Columns of X that are float64 at a time."""


def orthogonalise(matrix: Tensor, *, steps: int = STEPS) -> Tensor:
    """The direction of a 2-D gradient, in its own shape and dtype (bfloat16 and float16 are computed in float32), by so
    many steps, 1 or more. A zero matrix stays zero."""
    exact = matrix if matrix.dtype in (torch.float32, torch.float64) else matrix.float()
    tall = exact.shape[0] > exact.shape[1]
    x_MN = exact.mT if tall else exact
    if x_MN.shape[1] >= SPECTRAL_RATIO * x_MN.shape[0] and x_MN.device.type == "cpu":
        x_MN = _apply(_spectral(x_MN, steps), x_MN)
    else:
        # The sum of squares adds in pairs; vector_norm does not, and is off by 1e-4 on millions of numbers.
        x_MN = _iterated(x_MN / (x_MN.square().sum().sqrt() + EPSILON), steps)
    return (x_MN.mT if tall else x_MN).to(matrix.dtype)


def _iterated(x_MN: Tensor, steps: int) -> Tensor:
    if x_MN.shape[1] < GRAM_RATIO * x_MN.shape[0]:
        for _ in range(steps):
            x_MN = _plain_step(x_MN)
        return x_MN
    for done in range(0, steps, GRAM_RESTART):
        gram_MM = _symmetric(x_MN, x_MN.mT)
        x_MN = _apply(_polynomial(gram_MM, min(GRAM_RESTART, steps - done)), x_MN)
    return x_MN


def _plain_step(x_MN: Tensor) -> Tensor:
    a, b, c = COEFFICIENTS
    gram_MM = _symmetric(x_MN, x_MN.mT)
    return torch.addmm(x_MN, _symmetric(gram_MM, gram_MM).mul_(c).add_(gram_MM, alpha=b), x_MN, beta=a)


def _spectral(x_MN: Tensor, steps: int) -> Tensor:
    """All steps' polynomial by way of its values at the eigenvalues λ of the Gram matrix, whose trace is the square of
    X's norm: a step makes σ ← σ(a + bλ + cλ²), λ = σ²."""
    a, b, c = COEFFICIENTS
    gram_MM = x_MN.new_zeros(x_MN.shape[0], x_MN.shape[0], dtype=torch.float64)
    for start in range(0, x_MN.shape[1], SLICE):
        wide_MN = x_MN[:, start : start + SLICE].double()
        gram_MM += _symmetric(wide_MN, wide_MN.mT)
    norm = gram_MM.trace().sqrt() + EPSILON
    gram_MM /= norm.square()
    square_M, vectors_MM = cast("tuple[Tensor, Tensor]", torch.linalg.eigh(gram_MM))  # pyright: ignore[reportUnknownMemberType]
    product_M = torch.ones_like(square_M)
    for _ in range(steps):
        factor_M = a + b * square_M + c * square_M.square()
        product_M, square_M = product_M * factor_M, square_M * factor_M.square()
    return _symmetric(vectors_MM * (product_M / norm), vectors_MM.mT).to(x_MN.dtype)


def _polynomial(gram_MM: Tensor, steps: int) -> Tensor:
    """The product of the plain steps' factors: P = aI + bR + cR² of the Gram matrix R is symmetric and commutes with
    it, so that X ← PX makes R ← PRP."""
    a, b, c = COEFFICIENTS
    product_MM: Tensor | None = None
    for left in reversed(range(steps)):
        factor_MM = _symmetric(gram_MM, gram_MM).mul_(c).add_(gram_MM, alpha=b)
        factor_MM.diagonal().add_(a)
        product_MM = factor_MM if product_MM is None else _symmetric(factor_MM, product_MM)
        if left:
            gram_MM = _symmetric(_symmetric(factor_MM, gram_MM), factor_MM)
    assert product_MM is not None, "no steps"
    return product_MM


def _apply(product_MM: Tensor, x_MN: Tensor) -> Tensor:
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
