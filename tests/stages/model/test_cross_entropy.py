"""The chunked cross-entropy equals torch's, in value and gradient, wherever the chunks end."""

import pytest
import torch
from torch.nn import functional as F

from elf.stages.model import cross_entropy as module
from elf.stages.model.cross_entropy import arg_max, cross_entropy

ROWS, WIDTH, VOCABULARY = 11, 4, 9


@pytest.fixture
def given():
    generator = torch.Generator().manual_seed(0)
    shapes = [(ROWS, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,)]
    tensors = [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]
    return *tensors, torch.randint(VOCABULARY, (ROWS,), generator=generator)


@pytest.mark.parametrize("at_once", [1, VOCABULARY * 4, VOCABULARY * ROWS, 1 << 20])
def test_equals_torch(at_once: int, given, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOGITS_AT_ONCE", at_once)
    features, weight, bias, targets = given
    share = torch.linspace(0, 2, ROWS, dtype=torch.float64)
    total, each = cross_entropy(features, weight, bias, targets, share)
    expected = F.cross_entropy(F.linear(features, weight, bias), targets, reduction="none")
    assert torch.allclose(each, expected)
    assert not each.requires_grad
    gradients = torch.autograd.grad(3.0 * total, [features, weight, bias])
    wanted = torch.autograd.grad(3.0 * (share * expected).sum(), [features, weight, bias])
    for got, want in zip(gradients, wanted, strict=True):
        assert torch.allclose(got, want)
    assert torch.equal(arg_max(features, weight, bias), F.linear(features, weight, bias).argmax(dim=-1))


def test_gradients_are_given_once(given) -> None:
    """They are handed on and scaled in place: a second time they would be wrong."""
    features, weight, bias, targets = given
    total, _ = cross_entropy(features, weight, bias, targets, torch.ones(ROWS))
    torch.autograd.grad(total, [weight], retain_graph=True)
    with pytest.raises(RuntimeError, match="gave its gradients away"):
        torch.autograd.grad(total, [weight])


def test_without_gradient(given) -> None:
    features, weight, bias, targets = given
    with torch.no_grad():
        total, _ = cross_entropy(features, weight, bias, targets, torch.ones(ROWS))
    assert not total.requires_grad


def test_keeps_full_precision_under_autocast(given) -> None:
    features, weight, bias, targets = given
    plain, _ = cross_entropy(features, weight, bias, targets, torch.ones(ROWS))
    with torch.autocast("cpu", torch.bfloat16):
        cast, _ = cross_entropy(features, weight, bias, targets, torch.ones(ROWS))
    assert torch.equal(plain, cast)


def test_large_scores_stay_finite(given) -> None:
    features, weight, bias, targets = given
    total, _ = cross_entropy(1e4 * features, weight, bias, targets, torch.ones(ROWS))
    assert total.isfinite()
    assert all(g.isfinite().all() for g in torch.autograd.grad(total, [features, weight, bias]))
