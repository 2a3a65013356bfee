"""The files of an encoder's folder: its configuration, its weights, the digest of both.

Only safetensors are read: weights in pickles can run code.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import xxhash
from safetensors import SafetensorError, safe_open
from torch import Tensor

from elf.cache.files import digest_file
from elf.pipeline.errors import Failed
from elf.stages.weight_files import FLOATS, WHOLE, read_headers, refuse_other_numbers, weight_files

CONFIG = "config.json"


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
    """``xxh3:…`` over the configuration and every file of weights, by name."""
    state = xxhash.xxh3_128()
    for path in [folder / CONFIG, *weight_files(folder)]:
        state.update(f"{path.name}\n{digest_file(path)}\n".encode())
    return f"xxh3:{state.hexdigest()}"


def stored_dtype(folder: Path) -> str:
    """The dtype that most weights are stored as. Raises as ``read_headers``, and Failed where none is a float."""
    headers = read_headers(folder)
    sizes: dict[str, int] = {}
    for tensor in headers.values():
        if tensor.dtype in FLOATS:
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.bytes
    if not sizes:
        refuse_other_numbers(headers, sorted(headers))
        raise Failed(f"The weight files in {folder} hold no tensor. {WHOLE}")
    return FLOATS[max(sorted(sizes), key=sizes.__getitem__)]


def read_weights(folder: Path, wanted: Iterable[str]) -> dict[str, Tensor]:
    """The named tensors, those that are there, as float32. Raises Failed where one is stored as other than floats."""
    headers = read_headers(folder)
    there = [name for name in wanted if name in headers]
    refuse_other_numbers(headers, there)
    found: dict[str, Tensor] = {}
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in there:
                    if headers[name].file == path:
                        found[name] = file.get_tensor(name).float()
        except (SafetensorError, OSError) as error:
            raise Failed(f"{path} cannot be read: {error}. {WHOLE}") from error
    return found
