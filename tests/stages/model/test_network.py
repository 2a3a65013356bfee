"""The network's rules that recorded numbers do not pin: start, precision, lengths, gates, ablations."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from elf.stages.model.config import SIZES
from elf.stages.model.layers import RMSNorm, Rotation, rotary_tables, rotate
from elf.stages.model.network import Network, build, count_parameters
from tests.stages.model.tiny import SHAPE, tiny_config, tiny_network

WIDTH, LENGTH = SHAPE["width"], SHAPE["length"]


def given(rows: int = 3, *, length: int = LENGTH, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {
        "z_BLC": torch.randn(rows, length, 2 * WIDTH, generator=generator).to(dtype),
        "t_B": torch.rand(rows, generator=generator).to(dtype),
        "guidance_B": torch.rand(rows, generator=generator).to(dtype),
    }


def test_fresh_parameters() -> None:
    network = build(tiny_config(hidden=128, width=64, bottleneck=32), torch.Generator().manual_seed(1))
    for name, parameter in network.state_dict().items():
        spread, top = float(parameter.std(unbiased=False)), float(parameter.abs().max())
        if name.endswith("bias") or name.startswith("flow_head"):
            assert top == 0.0, name
        elif name.endswith("norm.weight"):
            assert (spread, top) == (0.0, 1.0), name
        elif "embedder" in name or name.endswith("tokens"):
            assert spread == pytest.approx(0.02, rel=0.15), name
        else:
            bound = math.sqrt(6.0 / sum(parameter.shape))
            assert 0.97 * bound < top <= bound, name
            assert spread == pytest.approx(bound / math.sqrt(3.0), rel=0.05), name


def test_start_follows_its_generator_only() -> None:
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    one, same, other = (build(tiny_config(), torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    pairs = zip(one.parameters(), same.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(one.decode_vocabulary.weight, other.decode_vocabulary.weight)


def test_fresh_network_estimates_zero() -> None:
    network = build(tiny_config(), torch.Generator().manual_seed(1))
    assert not network.flow(network(**given(dtype=torch.float32))).any()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"guidance_B": None}, "given no guidance scale, but with 3 guidance tokens it needs one"),
        ({"z_BLC": torch.zeros(3, LENGTH, 5)}, "must have 6 .* or 12"),
    ],
)
def test_refuses(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        tiny_network()(**(given() | changed))


def test_refuses_guidance_it_cannot_take() -> None:
    with pytest.raises(ValueError, match="given a guidance scale, but with 0 guidance tokens it takes none"):
        tiny_network(guidance_tokens=0)(**given())


def test_gate_is_each_rows_own() -> None:
    network, inputs = tiny_network(), given()
    gate = torch.tensor([0.0, 1.0, 0.5], dtype=torch.float64)
    mixed = network(**inputs, mode_B=gate).h_BLH
    for row in range(3):
        alone = {name: value[row : row + 1] for name, value in inputs.items()}
        assert torch.allclose(network(**alone, mode_B=gate[row : row + 1]).h_BLH[0], mixed[row])
    assert torch.equal(network(**inputs).h_BLH, network(**inputs, mode_B=0 * gate).h_BLH)
    assert not torch.allclose(network(**inputs).h_BLH[1], mixed[1])


def test_hidden_keys_change_nothing_they_hold() -> None:
    network, inputs = tiny_network(), given()
    visible = torch.ones(3, LENGTH, dtype=torch.bool)
    visible[:, -2:] = False
    moved = inputs | {"z_BLC": inputs["z_BLC"].clone()}
    moved["z_BLC"][:, -2:] += 1.0
    one = network(**inputs, key_mask_BL=visible).h_BLH[:, :-2]
    assert torch.allclose(one, network(**moved, key_mask_BL=visible).h_BLH[:, :-2])
    assert not torch.allclose(network(**inputs).h_BLH[:, :-2], network(**moved).h_BLH[:, :-2])


def test_other_lengths_squeeze_positions() -> None:
    tables = rotary_tables(14, 8, prefix=2, trained=7)
    trained = rotary_tables(7, 8, prefix=2)
    assert torch.allclose(tables.cos_SW[2::2], trained.cos_SW[2:])
    assert torch.equal(tables.cos_SW[:2], torch.ones(2, 8, dtype=torch.float64))
    network = tiny_network()
    assert network(**given(length=14)).h_BLH.shape == (3, 14, SHAPE["hidden"])
    again = Network(tiny_config(length=14)).double()
    again.load_state_dict(network.state_dict())
    stretched = again(**given(length=14)).h_BLH
    assert not torch.allclose(stretched, network(**given(length=14)).h_BLH)


def recorder(seen: dict[str, torch.dtype], name: str) -> Callable[[nn.Module, Any, Tensor], None]:
    def record(_: nn.Module, __: Any, out: Tensor) -> None:
        seen[name] = out.dtype

    return record


def test_full_precision_around_the_blocks() -> None:
    """Under bf16 autocast the projections, the prefix and both heads compute in float32, the blocks do not."""
    network = tiny_network(dtype=torch.float32)
    seen: dict[str, torch.dtype] = {}
    for name, module in network.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(recorder(seen, name))
    inputs = given(dtype=torch.float32)
    plain = network.flow(network(**inputs))
    with torch.autocast("cpu", torch.bfloat16):
        hidden = network(**inputs)
        x, logits = network.flow(hidden), network.logits(hidden.h_BLH)
    assert {x.dtype, logits.dtype} == {torch.float32}
    assert seen.keys() == {n for n, m in network.named_modules() if isinstance(m, nn.Linear)}
    assert all(dtype == (torch.bfloat16 if ".blocks." in n else torch.float32) for n, dtype in seen.items())
    error = (x - plain).norm() / plain.norm()
    assert 0 < error < 0.02


def test_norms_rotations_and_the_stream_are_float32_under_autocast() -> None:
    """What enters and leaves them may be bf16; what is computed is not."""
    network = tiny_network(dtype=torch.float32)
    width, norm = 8, RMSNorm(8)
    with torch.no_grad():
        norm.weight.normal_(generator=torch.Generator().manual_seed(1))
    x_SW = torch.randn(7, width, generator=torch.Generator().manual_seed(0)).bfloat16()
    rotation = Rotation(*(table.float() for table in rotary_tables(7, width)))
    streams: list[torch.dtype] = []
    for block in network.trunk.blocks:
        block.register_forward_pre_hook(lambda _, given: streams.append(given[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(norm(x_SW), norm(x_SW.float()).bfloat16())
        assert torch.equal(rotate(x_SW, rotation), rotate(x_SW.float(), rotation).bfloat16())
        assert network(**given(dtype=torch.float32)).h_BLH.dtype == torch.float32
    assert set(streams) == {torch.float32}
    short = x_SW / x_SW.square().mean(-1, keepdim=True).sqrt() * norm.weight.bfloat16()
    assert not torch.equal(norm(x_SW), short), "or nothing was told apart"


def test_dropout_only_in_the_middle_half() -> None:
    network = tiny_network(dropout=0.5, depth=8)
    used = [block.attention.dropout for block in network.trunk.blocks]  # pyright: ignore
    assert used == [0.0, 0.0, 0.5, 0.5, 0.5, 0.5, 0.0, 0.0]
    inputs = given()
    assert not torch.equal(network(**inputs).h_BLH, network(**inputs).h_BLH)
    network.eval()
    assert torch.equal(network(**inputs).h_BLH, network(**inputs).h_BLH)


def test_no_bottleneck_is_one_projection() -> None:
    network = tiny_network(bottleneck=None)
    assert network.trunk.input_down is None
    assert network.trunk.input_up.weight.shape == (SHAPE["hidden"], WIDTH)


def test_adaln_says_everything_without_a_prefix() -> None:
    """A fresh block is the identity; time, guidance and mode all reach the output."""
    fresh = build(tiny_config(conditioning="adaln"), torch.Generator().manual_seed(1)).double()
    inputs = given()
    hidden = fresh(**inputs)
    assert torch.allclose(hidden.h_BLH, fresh.trunk.project(inputs["z_BLC"]))
    network = tiny_network(conditioning="adaln")
    base = network.flow(network(**inputs))
    for changed in ({"t_B": inputs["t_B"] / 2}, {"guidance_B": inputs["guidance_B"] / 2}):
        assert not torch.allclose(network.flow(network(**(inputs | changed))), base)
    assert not torch.allclose(network.flow(network(**inputs, mode_B=torch.ones(3))), base)
    rows = torch.tensor([2, 0])
    taken = network.flow(network(**inputs).take(rows))
    assert torch.allclose(taken, base[rows])


def published(**changed: Any) -> int:
    depth, hidden, heads = SIZES["B"]
    shape = {"width": 512, "vocabulary": 32100, "length": 1024, "bottleneck": 128}
    shape |= {"depth": depth, "hidden": hidden, "heads": heads, "guidance_tokens": 4, "mode_tokens": 4}
    config = tiny_config(**(shape | {"time_tokens": 4} | changed))
    with torch.device("meta"):
        return count_parameters(Network(config))


def test_parameter_counts_of_the_ablations() -> None:
    assert round(published(conditioning="adaln") / 1e6) == 148
    by_bottleneck = [published(bottleneck=b) for b in (32, 128, 512)]
    assert by_bottleneck == [published() + (b - 128) * (512 + 768) for b in (32, 128, 512)]
    assert published(bottleneck=None) == published() - 128 * (512 + 768) + 512 * 768
    assert published(decoder="separate") > 1.5 * published()


def test_separate_decoder_takes_the_decode_rows() -> None:
    network, inputs = tiny_network(decoder="separate"), given()
    gate = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    mixed = network(**inputs, mode_B=gate).h_BLH
    assert network.decode_trunk is not None
    assert torch.allclose(mixed[1], network.trunk(**inputs).h_BLH[1])
    apart = network.decode_trunk(**inputs, mode_B=torch.ones(3, dtype=torch.float64)).h_BLH
    assert torch.allclose(mixed[[0, 2]], apart[[0, 2]])
