"""The product's loss is the literal algorithm's, for every setting; its sums, sinks and refusals."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from elf.stages.model.config import ObjectiveConfig
from elf.stages.model.draws import Draws
from elf.stages.model.network import Network
from elf.stages.model.objective import Batch, Loss, loss, untrained_parameters
from tests.stages.model.literal import literal_loss
from tests.stages.model.tiny import tiny_batch, tiny_draws, tiny_network

ROWS = 12


def gradients(network: Network, total: Tensor) -> dict[str, Tensor | None]:
    network.zero_grad()
    total.backward()
    return {name: None if p.grad is None else p.grad.clone() for name, p in network.named_parameters()}


def assert_equal_mathematics(
    network: Network, batch: Batch, draws: Draws, objective: ObjectiveConfig
) -> Loss:
    result, plain = loss(network, batch, draws, objective), literal_loss(network, batch, draws, objective)
    assert torch.allclose(result.total, plain.total, rtol=1e-10)
    assert torch.allclose(result.ce, plain.values["ce_loss_val"], rtol=1e-10)
    assert torch.allclose(result.l2, plain.values["l2_loss_val"], rtol=1e-10)
    got, wanted = gradients(network, result.total), gradients(network, plain.total)
    scale = max(float(g.abs().max()) for g in wanted.values() if g is not None)
    for name, want in wanted.items():
        mine = got[name]
        if want is None:
            # The literal pass leaves an unused separate trunk without gradients; ours are zero.
            assert mine is None or not mine.any(), name
        else:
            assert mine is not None, name
            assert torch.allclose(mine, want, rtol=1e-8, atol=1e-12 * scale), name
    return result


@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"self_condition": 0.0},
        {"self_condition": 1.0},
        {"time_schedule": "uniform"},
        {"padding": "eos", "condition_dropout": 0.5},
        {"decode_condition": "kept"},
        {"guidance_law": "power", "noise_scale": 1.0, "min_gap": 0.3},
        {"decode_share": 0.0},
        {"decode_share": 1.0},
        {"decode_share": 0.5, "decode_noise_scale": 1.0},
    ],
    ids=str,
)
def test_equals_literal(changed: dict[str, Any], conditional: bool) -> None:
    objective = ObjectiveConfig(**changed)
    batch = tiny_batch(ROWS, conditional=conditional)
    assert_equal_mathematics(tiny_network(), batch, tiny_draws(ROWS, objective), objective)


@pytest.mark.parametrize(
    "changed",
    [
        {"prediction": "v"},
        {"prediction": "eps"},
        {"conditioning": "adaln"},
        {"decoder": "separate"},
        {"guidance_tokens": 0},
        {"mode_tokens": 0},
        {"bottleneck": None},
        {"conditioning": "adaln", "decoder": "separate", "guidance_tokens": 0},
    ],
    ids=str,
)
def test_ablations_equal_literal(changed: dict[str, Any]) -> None:
    objective = ObjectiveConfig(decode_share=0.4)
    batch, draws = tiny_batch(ROWS, conditional=True), tiny_draws(ROWS, objective)
    plain = loss(tiny_network(), batch, draws, objective).total
    result = assert_equal_mathematics(tiny_network(**changed), batch, draws, objective)
    assert result.total != plain


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("decoder", ["shared", "separate"])
@pytest.mark.parametrize("conditioning", ["prefix", "adaln"])
def test_every_parameter_gets_a_gradient(share: float, decoder: str, conditioning: str) -> None:
    """Of zeros where the batch has no row for it."""
    objective = ObjectiveConfig(decode_share=share)
    network = tiny_network(decoder=decoder, conditioning=conditioning)
    got = gradients(network, loss(network, tiny_batch(4), tiny_draws(4, objective), objective).total)
    assert all(g is not None for g in got.values())
    idle = "decode_vocabulary.weight" if share == 0.0 else "flow_head.weight"
    assert not got[idle].any()  # pyright: ignore[reportOptionalMemberAccess]


def test_only_the_self_condition_projection_stays_without() -> None:
    objective = ObjectiveConfig(self_condition=0.0)
    network = tiny_network(decoder="separate")
    got = gradients(network, loss(network, tiny_batch(9), tiny_draws(9, objective), objective).total)
    names = {name for name, g in got.items() if g is None}
    named = dict(network.named_parameters())
    assert {id(named[name]) for name in names} == {id(p) for p in untrained_parameters(network, objective)}
    assert names == {f"{t}.self_condition.{k}" for t in ("trunk", "decode_trunk") for k in ("weight", "bias")}
    assert not untrained_parameters(network, ObjectiveConfig())


def test_dropout_makes_the_literal_passes() -> None:
    """Same seed, same masks: with dropout the loss is the literal algorithm's, not the short one's."""
    objective = ObjectiveConfig()
    network = tiny_network(dropout=0.3)
    batch, draws = tiny_batch(ROWS), tiny_draws(ROWS, objective)
    state = torch.random.get_rng_state()
    result = loss(network, batch, draws, objective)
    assert torch.equal(torch.random.get_rng_state(), state)
    with torch.random.fork_rng():
        torch.manual_seed(draws.dropout_seed)
        plain = literal_loss(network, batch, draws, objective)
    assert torch.allclose(result.total, plain.total, rtol=1e-12)
    other = loss(network, batch, replace(draws, dropout_seed=1), objective)
    assert not torch.allclose(result.total, other.total)
    network.eval()
    assert_equal_mathematics(network, batch, draws, objective)


def test_condition_kept_changes_only_the_state_of_the_condition() -> None:
    batch, network = tiny_batch(ROWS, conditional=True), tiny_network()
    corrupted, kept = (
        ObjectiveConfig(decode_share=1.0),
        ObjectiveConfig(decode_share=1.0, decode_condition="kept"),
    )
    draws = tiny_draws(ROWS, corrupted)
    assert loss(network, batch, draws, corrupted).ce != loss(network, batch, draws, kept).ce
    free = tiny_batch(ROWS)
    assert loss(network, free, draws, corrupted).ce == loss(network, free, draws, kept).ce


def test_parts_add_up_over_micro_batches() -> None:
    """Sums and counts of halves make the whole, as a data-parallel caller needs."""
    objective = ObjectiveConfig(padding="pad")
    network, batch = tiny_network(), tiny_batch(ROWS, conditional=True)
    draws = tiny_draws(ROWS, objective)
    whole = loss(network, batch, draws, objective)
    halves = [
        loss(network, take(batch, rows), take(replace(draws, dropout_seed=0), rows), objective)
        for rows in (slice(0, 5), slice(5, ROWS))
    ]
    total = sum(h.sum for h in halves) / sum(h.count for h in halves)
    assert torch.allclose(torch.as_tensor(total), whole.total)
    assert torch.allclose(torch.cat([h.ce_B for h in halves]), whole.ce_B)
    assert torch.allclose(torch.cat([h.l2_B for h in halves]), whole.l2_B)
    assert torch.allclose(halves[0].levels_4K + halves[1].levels_4K, whole.levels_4K)
    assert whole.count == whole.count_B.sum()
    assert torch.allclose(whole.ce_B.sum() + whole.l2_B.sum(), whole.sum)


def take(record: Any, rows: slice) -> Any:
    fields = {name: getattr(record, name) for name in record.__dataclass_fields__}
    return replace(record, **{n: v[rows] for n, v in fields.items() if isinstance(v, Tensor)})


@pytest.mark.parametrize("multiple", [1, 8, 64])
def test_padded_rows_change_nothing(multiple: int) -> None:
    objective = ObjectiveConfig()
    network, batch, draws = tiny_network(), tiny_batch(ROWS), tiny_draws(ROWS, objective)
    seen: list[int] = []
    network.register_forward_hook(lambda _, given, __: seen.append(len(given[0])))
    plain, padded = (loss(network, batch, draws, objective, row_multiple=m) for m in (1, multiple))
    assert torch.allclose(plain.total, padded.total)
    assert seen[2] % multiple == 0
    assert seen[3] == ROWS


def test_forwards_and_rows() -> None:
    """One pass with gradient over all rows, one without over the self-conditioned denoise rows."""
    objective = ObjectiveConfig()
    network, batch, draws = tiny_network(), tiny_batch(ROWS), tiny_draws(ROWS, objective)
    seen: list[tuple[int, bool]] = []
    network.register_forward_hook(lambda _, given, __: seen.append((len(given[0]), torch.is_grad_enabled())))
    loss(network, batch, draws, objective)
    assert seen == [(int((draws.coin_B & ~draws.decode_B).sum()), False), (ROWS, True)]


def test_refuses_ids_outside_the_head() -> None:
    objective, batch = ObjectiveConfig(), tiny_batch(2)
    draws = tiny_draws(2, objective)
    batch.ids_BL[1, 2] = 23
    with pytest.raises(ValueError, match=r"to 23, but the decode head has 23 entries"):
        loss(tiny_network(), batch, draws, objective)


def test_no_counted_position_is_no_nan() -> None:
    objective = ObjectiveConfig()
    batch = tiny_batch(4)
    full = torch.full((4,), 7)
    result = loss(
        tiny_network(), Batch(batch.x_BLD, batch.ids_BL, full, full), tiny_draws(4, objective), objective
    )
    assert [v.item() for v in (result.total, result.ce, result.l2, result.count)] == [0, 0, 0, 0]


def test_bf16_autocast_is_close() -> None:
    objective = ObjectiveConfig()
    network = tiny_network(dtype=torch.float32)
    batch, draws = tiny_batch(ROWS, dtype=torch.float32), tiny_draws(ROWS, objective, dtype=torch.float32)
    plain = loss(network, batch, draws, objective)
    with torch.autocast("cpu", torch.bfloat16):
        cast = loss(network, batch, draws, objective)
    assert cast.sum.dtype == torch.float32
    assert cast.total != plain.total
    assert cast.total.item() == pytest.approx(plain.total.item(), rel=0.02)
