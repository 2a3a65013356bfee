from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from elf.pipeline.errors import Failed
from elf.pipeline.progress import LineProgress
from elf.stages.gguf import read_header, read_tensor, unpack_gguf

HIDDEN, HEADS, PAIRS, LAYERS, MIDDLE = 64, 4, 2, 2, 96
PIECES = ["<|end|>", *"abcdefgh0123", "Ġ", "ab", "Ġab"]


def make_gguf(
    path: Path, *, tied: bool = True, architecture: str = "llama", splitter: str = "smollm"
) -> Path:
    """A random llama with Q8_0 matrices and a byte-level tokenizer of 16 pieces."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_context_length(32)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(MIDDLE)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(PAIRS)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(PIECES))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splitter)
    writer.add_token_list(PIECES)
    writer.add_token_types([3] + [1] * (len(PIECES) - 1))
    writer.add_token_merges(["a b", "Ġ ab"])
    for role in (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_unk_token_id):
        role(0)
    random = np.random.default_rng(0)
    matrices = {"token_embd": (len(PIECES), HIDDEN)} | ({} if tied else {"output": (len(PIECES), HIDDEN)})
    norms = ["output_norm"]
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        matrices |= {
            f"{block}attn_q": (HIDDEN, HIDDEN),
            f"{block}attn_k": (HIDDEN // HEADS * PAIRS, HIDDEN),
            f"{block}attn_v": (HIDDEN // HEADS * PAIRS, HIDDEN),
            f"{block}attn_output": (HIDDEN, HIDDEN),
            f"{block}ffn_gate": (MIDDLE, HIDDEN),
            f"{block}ffn_up": (MIDDLE, HIDDEN),
            f"{block}ffn_down": (HIDDEN, MIDDLE),
        }
        norms += [f"{block}attn_norm", f"{block}ffn_norm"]
    kind = gguf.GGMLQuantizationType.Q8_0
    for name, shape in matrices.items():
        plain = random.normal(0, 0.3, shape).astype(np.float32)
        writer.add_tensor(f"{name}.weight", gguf.quantize(plain, kind), raw_dtype=kind)
    for name in norms:
        writer.add_tensor(f"{name}.weight", random.normal(1, 0.1, HIDDEN).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def unpack(folder: Path, target: Path) -> Path:
    target.mkdir()
    unpack_gguf(folder, target, LineProgress(every=1e9))
    return target


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    """The plain model, the same file as transformers itself reads it, and the plain folder."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    root = tmp_path_factory.mktemp("gguf")
    make_gguf(root / "raw" / "tiny.gguf", tied=False)
    plain = unpack(root / "raw", root / "plain")
    ours = AutoModelForCausalLM.from_pretrained(plain, local_files_only=True)
    theirs = AutoModelForCausalLM.from_pretrained(
        root / "raw", gguf_file="tiny.gguf", dtype="float32", local_files_only=True
    )
    return ours, theirs, plain


def test_weights_equal_those_transformers_reads(models: tuple[Any, Any, Path]) -> None:
    import torch

    ours, theirs, _ = models
    mine, other = ours.state_dict(), theirs.state_dict()
    assert mine.keys() == other.keys()
    assert all(torch.equal(mine[name], other[name]) for name in mine)
    assert all(value.dtype == torch.float32 for value in mine.values())
    ids = torch.arange(10)[None] % 16
    with torch.inference_mode():
        assert torch.equal(ours(ids).logits, theirs(ids).logits)


def test_the_folder_has_a_tokenizer_that_splits_digits(models: tuple[Any, Any, Path]) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(models[2], local_files_only=True)
    assert tokenizer.tokenize("ab ab12") == ["ab", "Ġab", "1", "2"]
    assert tokenizer.decode(tokenizer("ab ab12").input_ids) == "ab ab12"
    assert (tokenizer.eos_token_id, tokenizer.bos_token_id) == (0, 0)
    assert tokenizer("a<|end|>").input_ids[-1] == 0


def test_a_tied_head_is_stored_once(tmp_path: Path) -> None:
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM

    make_gguf(tmp_path / "raw" / "tiny.gguf")
    plain = unpack(tmp_path / "raw", tmp_path / "plain")
    with safe_open(plain / "model.safetensors", "np") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118 (the file is no mapping)
    model = AutoModelForCausalLM.from_pretrained(plain, local_files_only=True)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_tensors_are_dequantised(tmp_path: Path) -> None:
    path = make_gguf(tmp_path / "tiny.gguf")
    header = read_header(path)
    reader = gguf.GGUFReader(path)
    for tensor in reader.tensors:
        expected = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(header.tensors[tensor.name].shape)
        assert np.array_equal(read_tensor(path, header.tensors[tensor.name]), expected)


@pytest.mark.parametrize(
    "damage", ["cut", "short", "magic", "architecture", "splitter", "none", "two", "pointer", "long", "step"]
)
def test_what_cannot_be_unpacked_is_named(tmp_path: Path, damage: str) -> None:
    path = make_gguf(
        tmp_path / "raw" / "tiny.gguf",
        architecture="gpt2" if damage == "architecture" else "llama",
        splitter="unheard-of" if damage == "splitter" else "smollm",
    )
    raw = path.read_bytes()
    if damage in ("cut", "short"):
        path.write_bytes(raw[: len(raw) // 2] if damage == "cut" else raw[:100])
    if damage == "magic":
        path.write_bytes(b"GGML" + raw[4:])
    if damage == "pointer":
        path.write_text("version https://git-lfs.github.com/spec/v1\n")
    if damage == "long":  # a tensor of more bytes than any memory has
        path.write_bytes(
            raw.replace(HIDDEN.to_bytes(8, "little") * 2, HIDDEN.to_bytes(8, "little") + b"\0" * 7 + b"\x10")
        )
    if damage == "step":  # an alignment of 0
        key, other = b"llama.context_length", b"general.alignment"
        lengths = [len(name).to_bytes(8, "little") for name in (key, other)]
        value = (4).to_bytes(4, "little") + (32).to_bytes(4, "little")
        path.write_bytes(raw.replace(lengths[0] + key + value, lengths[1] + other + value[:4] + bytes(4)))
    if damage == "none":
        path.rename(path.with_suffix(".bin"))
    if damage == "two":
        path.with_name("other.gguf").write_bytes(raw)
    said = {
        "none": "found none",
        "two": r"found other\.gguf, tiny\.gguf",
        "pointer": "tiny\\.gguf is no GGUF file: .*`git lfs pull`",
    }.get(damage, r"tiny\.gguf cannot be unpacked")
    with pytest.raises(Failed, match=said):
        unpack(tmp_path / "raw", tmp_path / "plain")
