"""A llama model in one GGUF file, turned into a plain model folder: config, safetensors in float32, tokenizer.

Quantised weights are dequantised; float32 holds every such value exactly (float16 does not: of SmolLM2-135M's
Q4_1 weights it would round every second one). Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from elf.pipeline.errors import Failed
from elf.pipeline.progress import Progress
from elf.stages.mistaken import mistaken

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
_CONTROL = 3
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where a tensor lies: ``shape`` outermost first, ``kind`` the number of its GGML type."""

    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a GGUF file says before its tensors; offsets count from the start of the file."""

    values: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


class _Cursor:
    """Reads little-endian values one after the other."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 0

    def scalar(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return value

    def text(self) -> str:
        length = self.scalar("Q")
        raw = self.data[self.at : self.at + length]
        if len(raw) != length:
            raise struct.error("a text runs past the end of the file")
        self.at += length
        return raw.decode()

    def value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind == _LIST:
            item, count = self.scalar("I"), self.scalar("Q")
            return [self.value(item) for _ in range(count)]
        return self.scalar(_SCALARS[kind])


def unpack_gguf(source: Path, target: Path, progress: Progress) -> None:
    """Write the model in the one ``.gguf`` file below ``source`` as a Hugging Face folder ``target``.

    Raises Failed where there is no or more than one such file, where it is damaged, and for what is not a llama
    with a byte-level BPE tokenizer.
    """
    found = sorted(source.rglob("*.gguf"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise Failed(
            f"`unpack: gguf` wants one .gguf file and found {names}; name the one after # in the URI."
        )
    path = found[0]
    if fault := mistaken(path):
        raise Failed(f"{path.name} is no GGUF file: {fault}.")
    try:
        header = read_header(path)
        progress.note(f"unpacking {len(header.tensors)} tensors of {path.name}")
        _write(path, header, target)
    except (struct.error, ArithmeticError, IndexError, KeyError, TypeError, ValueError) as error:
        raise Failed(
            f"{path.name} cannot be unpacked ({type(error).__name__}: {error}): it is damaged or not a GGUF file of "
            "a llama model. Fetch it again, or name a model in safetensors."
        ) from error


def read_header(path: Path) -> Header:
    """The key-value pairs and the tensor table of a GGUF file (version 2 or 3)."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        cursor = _Cursor(data)
        magic, version = cursor.scalar("4s"), cursor.scalar("I")
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"it starts with {magic!r}, version {version}")
        count, pairs = cursor.scalar("Q"), cursor.scalar("Q")
        values = {cursor.text(): cursor.value(cursor.scalar("I")) for _ in range(pairs)}
        table: dict[str, Tensor] = {}
        for _ in range(count):
            name, axes = cursor.text(), cursor.scalar("I")
            shape = tuple(cursor.scalar("Q") for _ in range(axes))[::-1]
            table[name] = Tensor(shape, cursor.scalar("I"), cursor.scalar("Q"))
        step = values.get("general.alignment", 32)
        start = -(-cursor.at // step) * step
    return Header(values, {name: Tensor(t.shape, t.kind, start + t.offset) for name, t in table.items()})


def read_tensor(path: Path, tensor: Tensor) -> np.ndarray:
    """The dequantised values, float32, in ``tensor.shape``."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

    kind = GGMLQuantizationType(tensor.kind)
    block, size = GGML_QUANT_SIZES[kind]
    count = prod(tensor.shape) // block * size
    if tensor.offset + count > path.stat().st_size:
        raise ValueError("the file ends inside a tensor")
    raw = np.fromfile(path, dtype=np.uint8, count=count, offset=tensor.offset)
    rows = raw.reshape(*tensor.shape[:-1], -1)
    if kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
        rows = rows.view("<f4" if kind is GGMLQuantizationType.F32 else "<f2")
    values = dequantize(rows, kind).astype(np.float32, copy=False).reshape(tensor.shape)
    if not np.isfinite(values).all():
        raise ValueError("a tensor holds a value that is not finite")
    return values


def _write(path: Path, header: Header, target: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    values = header.values
    if values["general.architecture"] != "llama":
        raise ValueError(f"its architecture is {values['general.architecture']}")
    heads, pairs = values["llama.attention.head_count"], values["llama.attention.head_count_kv"]
    tied = "output.weight" not in header.tensors
    config = LlamaConfig(
        vocab_size=header.tensors["token_embd.weight"].shape[0],
        hidden_size=values["llama.embedding_length"],
        intermediate_size=values["llama.feed_forward_length"],
        num_hidden_layers=values["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=pairs,
        max_position_embeddings=values["llama.context_length"],
        rms_norm_eps=values["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": values["llama.rope.freq_base"]},
        tie_word_embeddings=tied,
        bos_token_id=values.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=values.get("tokenizer.ggml.eos_token_id"),
        pad_token_id=values.get("tokenizer.ggml.padding_token_id"),
        dtype="float32",
    )
    state: dict[str, torch.Tensor] = {}
    for name, tensor in header.tensors.items():
        plain = read_tensor(path, tensor)
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            plain = _unrotate(plain, heads if name.endswith("attn_q.weight") else pairs)
        state[_rename(name)] = torch.from_numpy(np.ascontiguousarray(plain))
    if tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    try:
        model.load_state_dict(state, strict=True, assign=True)
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    model.tie_weights()
    model.save_pretrained(target)
    _write_tokenizer(values, target)


def _rename(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{kind}"
    block, layer, part = stem.split(".")
    if block != "blk":
        raise ValueError(f"the tensor {name} is unknown")
    return f"model.layers.{layer}.{_LAYER[part]}.{kind}"


def _unrotate(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF interleaves the two halves of each rotary pair; the plain model keeps them apart."""
    shape = weight.shape
    return weight.reshape(heads, shape[0] // heads // 2, 2, shape[1]).swapaxes(1, 2).reshape(shape)


def _write_tokenizer(values: Mapping[str, Any], target: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    kind, splitter = values["tokenizer.ggml.model"], values.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or splitter not in ("gpt-2", "default", "smollm"):
        raise ValueError(f"its tokenizer is {kind} with the splitter {splitter}")
    pieces: list[str] = values["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in values["tokenizer.ggml.merges"]]
    plain = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, merges))
    levels = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = pre_tokenizers.Digits(individual_digits=True)
    plain.pre_tokenizer = pre_tokenizers.Sequence([digits, levels]) if splitter == "smollm" else levels
    plain.decoder = decoders.ByteLevel()
    kinds = values.get("tokenizer.ggml.token_type", [])
    special = [piece for piece, number in zip(pieces, kinds, strict=False) if number == _CONTROL]
    plain.add_special_tokens([AddedToken(piece, normalized=False, special=True) for piece in special])
    roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    named = {
        role: pieces[values[f"tokenizer.ggml.{short}_token_id"]]
        for role, short in roles.items()
        if f"tokenizer.ggml.{short}_token_id" in values
    }
    fast = PreTrainedTokenizerFast(
        tokenizer_object=plain, model_max_length=values["llama.context_length"], **named
    )
    fast.save_pretrained(target)
