"""The files of an encoder's folder: its configuration, its weights, the digest of both.

Only safetensors are read: weights in pickles can run code.
"""

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import xxhash
from safetensors import SafetensorError, safe_open
from torch import Tensor

from elf.cache.files import digest_file
from elf.pipeline.errors import Failed

CONFIG = "config.json"
WHOLE = "Bring the whole model folder."
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def read_config(folder: Path) -> dict[str, Any]:
    """What ``config.json`` says. Raises Failed where it is missing or no JSON object with a model type."""
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Failed(f"{folder} holds no {CONFIG}, so there is no encoder in it. {WHOLE}") from None
    except ValueError as error:
        raise Failed(f"{path} is damaged: {error}. {WHOLE}") from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise Failed(f"{path} names no model_type, so nobody can say what encoder this is. {WHOLE}")
    return config


def digest_encoder(folder: Path) -> str:
    """``xxh3:…`` over the configuration and every weight file, by name."""
    state = xxhash.xxh3_128()
    for path in [folder / CONFIG, *weight_files(folder)]:
        state.update(f"{path.name}\n{digest_file(path)}\n".encode())
    return f"xxh3:{state.hexdigest()}"


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files in the folder. Raises Failed where there is none."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise Failed(
            f"{folder} holds no *.safetensors file. Weights in pickles (*.bin) can run code when they are read and "
            "are not taken; convert them with save_pretrained once."
        )
    return files


def stored_dtype(folder: Path) -> str:
    """The dtype that most weights are stored as, from the headers of the weight files."""
    held: dict[str, int] = {}
    for path in weight_files(folder):
        try:
            with path.open("rb") as stream:
                header = json.loads(stream.read(struct.unpack("<Q", stream.read(8))[0]))
        except (struct.error, ValueError) as error:
            raise Failed(f"{path} is no safetensors file: {error}. {WHOLE}") from error
        for name, entry in header.items():
            if name != "__metadata__" and entry["dtype"] in _DTYPES:
                begin, end = entry["data_offsets"]
                held[entry["dtype"]] = held.get(entry["dtype"], 0) + end - begin
    if not held:
        raise Failed(f"The weight files in {folder} hold no floating-point tensor. {WHOLE}")
    return _DTYPES[max(sorted(held), key=held.__getitem__)]


def read_weights(folder: Path, wanted: Iterable[str]) -> dict[str, Tensor]:
    """The named tensors, those that are there, as float32."""
    missing = set(wanted)
    found: dict[str, Tensor] = {}
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in missing & set(file.keys()):
                    found[name] = file.get_tensor(name).float()
        except (SafetensorError, OSError) as error:
            raise Failed(f"{path} cannot be read: {error}. {WHOLE}") from error
        missing -= found.keys()
    return found
