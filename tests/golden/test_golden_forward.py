"""The network: every recorded input and gate, intermediate values, layers alone, parameter counts."""

import pytest
import torch
from torch import Tensor

from elf.stages.model.config import SIZES, ModelConfig
from elf.stages.model.layers import RMSNorm, Rotation, rotary_tables, rotate, sinusoid
from elf.stages.model.naming import to_authors
from elf.stages.model.network import Network, build, count_parameters
from tests.golden.reading import Goldens, close, tolerance

GROUP = "forward"


def test_forward(case: str, dtype: torch.dtype, goldens: Goldens) -> None:
    record = goldens.index["cases"][case]
    if "weights" not in record:
        pytest.skip("not a forward pass")
    inputs = goldens.inputs(record["inputs"], "in/", dtype)
    network = goldens.network(record["weights"], record["model"], dtype)
    z = inputs["z"] if record["input"] == "z" else torch.cat([inputs["z"], inputs["self_cond"]], dim=-1)
    ones = torch.ones_like(inputs["t"])
    gates: dict[str, Tensor | None] = {
        "none": None,
        "false": 0 * ones,
        "true": ones,
        "ones": ones,
        "mix": inputs["decoder_mix"],
    }
    hidden = network(
        z,
        inputs["t"],
        guidance_B=inputs["cfg_scale"] if record["self_cond_cfg_scale"] else None,
        mode_B=gates[record["decoder_step_active"]],
        key_mask_BL=inputs["attention_mask"] if record["attention_mask"] else None,
    )
    kind = "out" if dtype == torch.float32 else "out64"
    file = record["file"] + ("" if dtype == torch.float32 else "_f64")
    expected = goldens.part(file, f"{case.split('/')[1]}/{kind}/")
    assert "x_pred" in expected
    close("x_pred", network.flow(hidden), expected["x_pred"], tolerance(dtype))
    if "logits" in expected:
        close("logits", network.logits(hidden.h_BLH), expected["logits"], tolerance(dtype))


def test_values_inside(dtype: torch.dtype, goldens: Goldens) -> None:
    record = goldens.index["cases"].get("forward/mid")
    if record is None:
        pytest.skip("no intermediate values recorded")
    of = goldens.index["cases"][record["of"].split(",")[0]]
    inputs = goldens.inputs(of["inputs"], "in/", dtype)
    network = goldens.network(of["weights"], of["model"], dtype)
    expected = goldens.part(
        record["file"] if dtype == torch.float32 else record["file_f64"],
        "mid/" if dtype == torch.float32 else "mid64/",
    )
    trunk, first = network.trunk, network.get_submodule("trunk.blocks.0")
    watched = {
        "self_cond_proj": trunk.self_condition,
        "text_proj.proj1": trunk.input_down,
        "text_proj": trunk.input_up,
        "t_embedder.mlp_0": trunk.time_embedder.first,
        "t_embedder": trunk.time_embedder,
        "self_cond_cfg_embedder": trunk.guidance_embedder,
        "blocks.0.norm1": first.get_submodule("attention_norm"),
        "blocks.0.attn.qkv": first.get_submodule("attention.qkv"),
        "blocks.0.attn.q_norm": first.get_submodule("attention.query_norm"),
        "blocks.0.attn.k_norm": first.get_submodule("attention.key_norm"),
        "blocks.0.attn": first.get_submodule("attention"),
        "blocks.0.norm2": first.get_submodule("feed_norm"),
        "blocks.0.mlp.w12": first.get_submodule("feed.gate_value"),
        "blocks.0.mlp": first.get_submodule("feed"),
        "final_layer.norm_final": network.flow_norm,
    } | {f"blocks.{i}": block for i, block in enumerate(trunk.blocks)}
    seen: dict[str, Tensor] = {}
    for name, module in watched.items():
        module.register_forward_hook(lambda _, __, out, name=name: seen.__setitem__(name, out))
    first.register_forward_pre_hook(lambda _, given: seen.__setitem__("blocks.0.input", given[0]))
    z = torch.cat([inputs["z"], inputs["self_cond"]], dim=-1)
    network.flow(network(z, inputs["t"], guidance_B=inputs["cfg_scale"], mode_B=inputs["decoder_mix"]))
    rotation = trunk.rotation(z.shape[1])
    seen |= {
        "blocks.0.attn.q_rope": rotate(seen["blocks.0.attn.q_norm"], rotation),
        "blocks.0.attn.k_rope": rotate(seen["blocks.0.attn.k_norm"], rotation),
        "rope_cos": rotation.cos_SW.to(dtype),
        "rope_sin": rotation.sin_SW.to(dtype),
        "timestep_sinusoid_t": sinusoid(inputs["t"]),
        "timestep_sinusoid_w": sinusoid(inputs["cfg_scale"]),
        "timestep_sinusoid_odd": sinusoid(inputs["t"], expected["timestep_sinusoid_odd"].shape[1]),
    }
    assert len(expected) > 20
    for name, recorded in expected.items():
        close(name, seen[name][: len(recorded)], recorded, tolerance(dtype))


def test_layers_alone(dtype: torch.dtype, goldens: Goldens) -> None:
    record = goldens.index["cases"].get("layers_alone")
    if record is None:
        pytest.skip("no layers recorded")
    inputs = goldens.inputs(record["file"], "in/", dtype)
    expected = goldens.expected(record, dtype)
    close("rmsnorm", norm(inputs, dtype), expected["rmsnorm"], tolerance(dtype))
    for name, rope in record["rope"].items():
        trained = rope["pt_seq_len"]
        length = rope.get("ft_seq_len", trained)
        rotation = rotary_tables(length, rope["dim"], prefix=rope.get("num_empty_token", 0), trained=trained)
        cos, sin = rotation.cos_SW.to(dtype), rotation.sin_SW.to(dtype)
        close(f"{name} cos", cos, expected[f"rope_{name}_cos"], tolerance(dtype))
        close(f"{name} sin", sin, expected[f"rope_{name}_sin"], tolerance(dtype))
        turned = rotate(inputs[f"rope_{name}_q"], Rotation(cos, sin))
        close(name, turned, expected[f"rope_{name}"], tolerance(dtype))


def test_norm_in_bfloat16(goldens: Goldens) -> None:
    """Recorded with every step rounded to bfloat16; ours rounds once, so they agree to two of its steps."""
    record = goldens.index["cases"].get("layers_alone")
    if record is None:
        pytest.skip("no layers recorded")
    inputs = goldens.inputs(record["file"], "in/", torch.bfloat16)
    expected = goldens.part(record["file"], "out_bf16/")["rmsnorm"].float()
    got = norm(inputs, torch.bfloat16)
    assert got.dtype == torch.bfloat16
    assert ((got.float() - expected).abs() <= 2**-7 * expected.abs()).all()


def norm(inputs: dict[str, Tensor], dtype: torch.dtype) -> Tensor:
    module = RMSNorm(inputs["rmsnorm_w"].shape[0]).to(dtype)
    module.load_state_dict({"weight": inputs["rmsnorm_w"]})
    return module(inputs["rmsnorm_x"]).detach()


def test_parameter_counts(goldens: Goldens) -> None:
    recorded = goldens.index.get("param_counts")
    if not recorded:
        pytest.skip("no counts recorded")
    for name, expected in recorded.items():
        size, vocabulary = name.removeprefix("ELF-").split("/")
        depth, hidden, heads = SIZES[size]
        with torch.device("meta"):
            network = Network(
                ModelConfig(
                    width=512,
                    vocabulary=int(vocabulary),
                    length=1024,
                    hidden=hidden,
                    depth=depth,
                    heads=heads,
                )
            )
        assert count_parameters(network) == expected, name


def test_fresh_elf_b(goldens: Goldens) -> None:
    """Spread and largest entry of every parameter of a fresh ELF-B, against a recorded draw of the same law."""
    recorded = goldens.index.get("elf_b_init_std_absmax")
    if recorded is None:
        pytest.skip("no start recorded")
    depth, hidden, heads = SIZES["B"]
    shapes = goldens.index["elf_b_params"]
    width, vocabulary = shapes["unembed_kernel"]
    config = ModelConfig(
        width=width, vocabulary=vocabulary, length=1024, hidden=hidden, depth=depth, heads=heads
    )
    tensors = to_authors(build(config, torch.Generator().manual_seed(0)).state_dict())
    assert {name: list(tensor.shape) for name, tensor in tensors.items()} == shapes
    for name, (std, largest) in recorded.items():
        got, top = float(tensors[name].std(correction=0)), float(tensors[name].abs().max())
        # A uniform law fills its bounds; a normal one has tails, and a small tensor a spread of its own.
        normal = name.endswith("tokens") or "embedder" in name
        few = 5 / tensors[name].numel() ** 0.5
        assert got == pytest.approx(std, rel=0.01 + few, abs=1e-4), name
        assert top == pytest.approx(largest, rel=0.35 if normal else 0.01 + few, abs=1e-4), name
