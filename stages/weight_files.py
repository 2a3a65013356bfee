"""A model folder's weights: which safetensors files they are, as transformers chooses them, and what these hold.

``model.safetensors`` alone if it is there, else the files that ``model.safetensors.index.json`` lists; what else lies
in the folder is not read. Headers are checked against the size of their file before anything of it is taken.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from elf.pipeline.errors import Failed
from elf.stages.mistaken import mistaken

WHOLE = "Bring the whole model folder."
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""The dtypes of plain weights, as safetensors and as torch name them."""
NO_SENSE = (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError)
"""What reading JSON of another shape than the one expected raises."""
_PREFIX = 8
"""Bytes at the head of a file that say how long its header is."""


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor as the header of ``file`` has it; ``bytes`` is its size."""

    file: Path
    dtype: str
    bytes: int


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights. Raises Failed where there are none, or one that is listed is missing."""
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if not (folder / INDEX).is_file():
        beside = ", ".join(sorted(path.name for path in folder.glob("*.safetensors"))[:5])
        raise Failed(
            f"{folder} holds neither {SINGLE} nor {INDEX}, which says what files the weights are in"
            f"{f' (there is {beside})' if beside else ''}. Weights in pickles (*.bin) can run code when they are read "
            f"and are not taken; convert them with save_pretrained once. {WHOLE}"
        )
    files = [folder / name for name in _listed(folder / INDEX)]
    if absent := [path.name for path in files if not path.is_file()]:
        raise Failed(
            f"{folder / INDEX} lists {absent[0]} among {len(files)} files of weights, and {len(absent)} of them are "
            f"missing. {WHOLE}"
        )
    return files


def _listed(path: Path) -> list[str]:
    try:
        names = set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values())
        if not names or any(Path(name).name != name or not name.endswith(".safetensors") for name in names):
            raise ValueError(
                "its weight_map must map every tensor to a *.safetensors file of the same folder"
            )
    except NO_SENSE as error:
        raise Failed(f"{path} does not list files of weights ({error}). {WHOLE}") from error
    return sorted(names)


def read_headers(folder: Path) -> dict[str, Held]:
    """Every tensor of the weights by its name. Raises Failed for a file that is none, and for a name in two files."""
    held: dict[str, Held] = {}
    for path in weight_files(folder):
        for name, tensor in read_header(path).items():
            if name in held:
                raise Failed(
                    f"{folder} holds {name} twice, in {held[name].file.name} and in {path.name}: nobody can say which "
                    f"is the model's. Bring the model folder as it was published, without files of another one."
                )
            held[name] = tensor
    return held


def read_header(path: Path) -> dict[str, Held]:
    """The tensors of one file by name. Raises Failed saying what the file is instead, or where it ends too soon."""
    if fault := mistaken(path):
        raise Failed(f"{path} is no safetensors file: {fault}, and bring the whole model folder.")
    size = path.stat().st_size
    with path.open("rb") as stream:
        start = stream.read(_PREFIX)
        begin = _PREFIX + int.from_bytes(start, "little")
        if len(start) < _PREFIX or begin > size:
            raise Failed(
                f"{path} is no safetensors file, or was cut: its header would end at byte {begin:,}, and the file has "
                f"{size:,}. {WHOLE}"
            )
        text = stream.read(begin - _PREFIX)
    try:
        found = {name: entry for name, entry in json.loads(text).items() if name != "__metadata__"}
        spans = {name: tuple(map(int, entry["data_offsets"])) for name, entry in found.items()}
        held = {
            name: Held(path, str(found[name]["dtype"]), end - begun) for name, (begun, end) in spans.items()
        }
    except NO_SENSE as error:
        raise Failed(
            f"{path} is no safetensors file: its header cannot be read ({error}). {WHOLE}"
        ) from error
    wanted = begin + max((end for _, end in spans.values()), default=0)
    if wanted != size:
        raise Failed(
            f"{path} is damaged: by its header it has {wanted:,} bytes, and it has {size:,}. Copy or fetch it again, "
            "whole."
        )
    return held


def spellings(parameters: Iterable[str], prefix: str) -> list[str]:
    """Names that transformers takes for a model's parameters, with and without its ``base_model_prefix``."""
    return [
        each for name in parameters for each in (name, f"{prefix}.{name}", name.removeprefix(f"{prefix}."))
    ]


def refuse_other_numbers(headers: Mapping[str, Held], wanted: Iterable[str]) -> None:
    """Raises Failed naming the first wanted tensor that is stored as no plain floating-point numbers."""
    for name in wanted:
        if name in headers and headers[name].dtype not in FLOATS:
            raise Failed(
                f"{headers[name].file} holds {name} as {headers[name].dtype}. Integers and quantised weights are no "
                "plain numbers: read as such they make another model. Bring the unquantised weights "
                f"({', '.join(FLOATS)})."
            )
