"""Frozen encoders: the layer that was asked for, honest masks, and folders that are refused."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from toy_encoders import VOCABULARY, make_t5
from transformers import AutoConfig, AutoModel, PreTrainedModel

from elf.pipeline.errors import Failed, Misconfigured
from elf.stages.encoder import BERT_TYPES, describe_encoder, load_encoder
from elf.stages.encoder_files import digest_encoder
from elf.stages.model.masks import additive, encoder_mask, is_valid

SMALL = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 66, "initializer_range": 0.3,
}  # fmt: skip
DISTIL = {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48}
FAMILIES = ("t5", *BERT_TYPES)


def make(kind: str) -> PreTrainedModel:
    if kind == "t5":
        return make_t5()
    config = AutoConfig.for_model(kind, **(SMALL | (DISTIL if kind == "distilbert" else {})))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModel.from_config(config, attn_implementation="eager").eval()


def saved(folder: Path, kind: str = "t5") -> PreTrainedModel:
    model = make(kind)
    model.save_pretrained(folder)
    return model


def opened(folder: Path, layer: int | None = None, compute: str = "float32"):
    return load_encoder(describe_encoder(folder, layer=layer, compute=compute))


def ids(batch: int, length: int) -> Tensor:
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(length))


def stack(model: PreTrainedModel) -> PreTrainedModel:
    return model.get_encoder() if model.config.is_encoder_decoder else model


@pytest.mark.parametrize("kind", FAMILIES)
@torch.no_grad()
def test_every_layer_equals_transformers_under_every_mask(kind: str, tmp_path: Path) -> None:
    model = stack(saved(tmp_path, kind))
    condition_B, length_B = torch.tensor([3, 5]), torch.tensor([10, 5])
    square = encoder_mask(condition_B, length_B, 12, drop_B=torch.tensor([False, True]))
    keys = is_valid(length_B, 12)[:, None, :]
    masks = (None, keys, square)
    theirs = [
        model(
            input_ids=ids(2, 12),
            attention_mask=None if mask is None else additive(mask.expand(-1, 12, -1)),
            output_hidden_states=True,
        ).hidden_states
        for mask in masks
    ]
    for layer in range(len(theirs[0])):
        encoder = opened(tmp_path, layer)
        for mask, hidden in zip(masks, theirs, strict=True):
            ours = encoder.states(ids(2, 12), mask)
            torch.testing.assert_close(ours, hidden[layer], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_short_text_has_the_same_states_alone_and_beside_a_long_one(kind: str, tmp_path: Path) -> None:
    saved(tmp_path, kind)
    encoder = opened(tmp_path)
    short, long = ids(1, 7), ids(1, 60)
    batch = torch.cat([torch.nn.functional.pad(short, (0, 53), value=1), long])
    alone = encoder.states(short)
    beside = encoder.states(batch, is_valid(torch.tensor([7, 60]), 60)[:, None, :])
    torch.testing.assert_close(beside[:1, :7], alone, rtol=0, atol=1e-5)
    torch.testing.assert_close(beside[1:], encoder.states(long), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["t5", "bert"])
def test_batch_mates_change_no_bit(kind: str, tmp_path: Path) -> None:
    saved(tmp_path, kind)
    encoder, rows = opened(tmp_path), ids(9, 20)
    mask = is_valid(torch.arange(12, 21), 20)[:, None, :]
    together = encoder.states(rows, mask)
    for size in (1, 2, 4):
        cut = [encoder.states(*each) for each in zip(rows.split(size), mask.split(size), strict=True)]
        assert torch.equal(torch.cat(cut), together)


@pytest.mark.parametrize("kind", ["t5", "bert"])
def test_bfloat16_is_another_number_near_by(kind: str, tmp_path: Path) -> None:
    saved(tmp_path, kind)
    full, half = (opened(tmp_path, compute=compute).states(ids(2, 9)) for compute in ("float32", "bfloat16"))
    assert (full.dtype, half.dtype) == (torch.float32, torch.bfloat16)
    assert 0 < (full - half.float()).norm() / full.norm() < 5e-2


def test_what_an_encoder_is(tmp_path: Path) -> None:
    saved(tmp_path)
    info = describe_encoder(tmp_path, layer=1, compute="bfloat16")
    assert (info.width, info.layers, info.layer, info.vocabulary) == (32, 2, 1, VOCABULARY)
    assert (info.kind, info.longest, info.compute, info.weights) == (
        "FastT5",
        None,
        "bfloat16",
        "float32",
    )
    assert describe_encoder(tmp_path, layer=None, compute="float32").layer == 2


def test_positions_that_a_table_has(tmp_path: Path) -> None:
    saved(tmp_path / "bert", "bert")
    saved(tmp_path / "roberta", "roberta")
    for kind, longest in (("bert", 66), ("roberta", 64)):
        info = describe_encoder(tmp_path / kind, layer=None, compute="float32")
        assert info.longest == longest
        assert torch.isfinite(load_encoder(info).states(ids(1, longest))).all()


def test_float16_weights_are_seen_and_computed_in_float32(tmp_path: Path) -> None:
    model = make_t5().half()
    model.save_pretrained(tmp_path)
    info = describe_encoder(tmp_path, layer=None, compute="float32")
    assert info.weights == "float16"
    assert load_encoder(info).states(ids(1, 5)).dtype == torch.float32


def test_the_digest_follows_weights_and_configuration(tmp_path: Path) -> None:
    saved(tmp_path)
    before = digest_encoder(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = "encoder.block.1.layer.1.DenseReluDense.wo.weight"
    weights[name] = weights[name] * 1.001
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    after = digest_encoder(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["layer_norm_epsilon"] = 1e-5
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert len({before, after, digest_encoder(tmp_path)}) == 3


def test_half_precision_arithmetic_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(Misconfigured, match=r"encode\.compute is float16.*overflow"):
        describe_encoder(tmp_path, layer=None, compute="float16")


def test_a_layer_that_is_not_there_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(Misconfigured, match=r"encode\.layer is 3.*0 to 2"):
        describe_encoder(tmp_path, layer=3, compute="float32")


def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    for wrong in (VOCABULARY, -1):
        with pytest.raises(Failed, match=f"id {wrong} is outside.* {VOCABULARY} ids"):
            opened(tmp_path).states(torch.tensor([[1, wrong]]))


@pytest.mark.parametrize("kind", ["t5", "bert"])
def test_missing_weights_are_refused_not_invented(kind: str, tmp_path: Path) -> None:
    saved(tmp_path, kind)
    weights = load_file(tmp_path / "model.safetensors")
    lost = next(name for name in weights if name.startswith(("encoder.block.1", "encoder.layer.1")))
    save_file(
        {n: t for n, t in weights.items() if n != lost}, tmp_path / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(Failed, match="lacks 1 of its weights"):
        opened(tmp_path)


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"d_ff": 40}))
    with pytest.raises(Failed, match=r"lacks 4 .*wi\.weight \(\(48, 32\) instead of \(40, 32\)"):
        opened(tmp_path)


def test_folders_without_an_encoder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"no config\.json"):
        describe_encoder(tmp_path, layer=None, compute="float32")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(Failed, match=r"is a gpt2.*t5"):
        describe_encoder(tmp_path, layer=None, compute="float32")
    saved(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(Failed, match=r"neither model\.safetensors nor"):
        describe_encoder(tmp_path, layer=None, compute="float32")
    (tmp_path / "model.safetensors").write_bytes(b"\x10")
    with pytest.raises(Failed, match="no safetensors file"):
        describe_encoder(tmp_path, layer=None, compute="float32")


@pytest.mark.parametrize("kind", ["t5", "bert"])
def test_left_over_weights_beside_the_whole_file_change_nothing(kind: str, tmp_path: Path) -> None:
    saved(tmp_path, kind)
    before, digest = opened(tmp_path).states(ids(1, 5)), digest_encoder(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    others = {name: tensor * 2 for name, tensor in weights.items()}
    save_file(others, tmp_path / "model-00001-of-00002.safetensors", {"format": "pt"})
    assert torch.equal(opened(tmp_path).states(ids(1, 5)), before)
    assert digest_encoder(tmp_path) == digest


def rewrite(folder: Path, part: str, dtype: torch.dtype) -> None:
    """Store the weights whose names end so as another dtype."""
    weights = load_file(folder / "model.safetensors")
    cast = {name: t.to(dtype) if name.endswith(part) else t for name, t in weights.items()}
    save_file(cast, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.float8_e4m3fn])
@pytest.mark.parametrize(("kind", "part"), [("t5", "wo.weight"), ("bert", "query.weight")])
def test_quantised_weights_are_refused(kind: str, part: str, dtype: torch.dtype, tmp_path: Path) -> None:
    saved(tmp_path, kind)
    rewrite(tmp_path, part, dtype)
    with pytest.raises(Failed, match=rf"model\.safetensors holds \S+{part} as [IF]\d+.*unquantised"):
        opened(tmp_path)
    rewrite(tmp_path, "", dtype)
    with pytest.raises(Failed, match="unquantised"):
        describe_encoder(tmp_path, layer=None, compute="float32")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["t5", "bert"])
def test_weights_of_every_float_are_read(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = saved(tmp_path, kind)
    assert model.config.model_type == kind
    wanted = opened(tmp_path).states(ids(1, 5))
    rewrite(tmp_path, "", dtype)
    torch.testing.assert_close(opened(tmp_path).states(ids(1, 5)), wanted, rtol=0.1, atol=0.1)


def test_tables_of_integers_that_no_layer_reads_do_not_matter(tmp_path: Path) -> None:
    """As published BERTs hold one, their position ids."""
    saved(tmp_path, "bert")
    weights = load_file(tmp_path / "model.safetensors")
    weights = {f"bert.{name}": tensor for name, tensor in weights.items()}
    weights["bert.embeddings.position_ids"] = torch.arange(66)[None]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    assert torch.isfinite(opened(tmp_path).states(ids(1, 5))).all()
    rewrite(tmp_path, "query.weight", torch.int8)
    with pytest.raises(Failed, match=r"holds bert\.\S+query\.weight as I8"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"relative_attention_max_distance": 0}, r"max_distance is 0, .* more than 8"),
        ({"relative_attention_num_buckets": 2}, r"num_buckets is 2, .* 4 or more"),
        ({"num_layers": -1}, "num_layers is -1, and must be 0 or more"),
        ({"d_model": float("inf")}, "cannot convert float infinity"),
    ],
)
def test_numbers_that_no_t5_has_are_refused(change: dict[str, float], said: str, tmp_path: Path) -> None:
    saved(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(Failed, match=rf"config\.json does not describe a t5 encoder: .*{said}"):
        describe_encoder(tmp_path, layer=None, compute="float32")


def test_layers_above_the_one_that_is_read_are_not_computed(tmp_path: Path) -> None:
    """Poison in the last layer must not reach a lower one."""
    for kind, name in (("t5", "encoder.block.1"), ("bert", "encoder.layer.2")):
        saved(tmp_path / kind, kind)
        path = tmp_path / kind / "model.safetensors"
        weights = load_file(path)
        poisoned = {n: t * float("nan") if n.startswith(name) else t for n, t in weights.items()}
        save_file(poisoned, path, {"format": "pt"})
        info = describe_encoder(tmp_path / kind, layer=1, compute="float32")
        assert torch.isfinite(load_encoder(info).states(ids(1, 5))).all()
        last = load_encoder(replace(info, layer=info.layers))
        assert not torch.isfinite(last.states(ids(1, 5))).all()


def test_loading_says_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path, "bert")
    opened(tmp_path, 1)
    assert capfd.readouterr() == ("", "")
    assert transformers.utils.logging.get_verbosity() == logging.WARNING
