"""From the documents of a store back to its layout; anything but what our writer writes is refused."""

import json
from pathlib import Path
from typing import cast

import numpy as np

from elf.cache import metadata
from elf.cache.errors import AGAIN, Damaged
from elf.cache.layout import STORAGE, ArrayLayout, DType, Layout, RaggedLayout
from elf.cache.manifest import JSON
from elf.cache.parts import check_document


def is_ragged(folder: Path) -> bool:
    """Whether a store is one of rows of their own lengths."""
    return (folder / "tokens").is_dir()


def read_layout(folder: Path) -> Layout:
    """The layout of a store of either kind. Raises Damaged naming the document that is missing or off."""
    return read_ragged_layout(folder) if is_ragged(folder) else read_array_layout(folder)


def read_array_layout(folder: Path) -> ArrayLayout:
    """The layout of a store of fixed rows. Raises Damaged naming the document that is missing or off."""
    path = folder / metadata.DOCUMENT
    document = _load(path)
    try:
        rows, length, width = _numbers(document, "shape")
        shard_rows, *_ = _chunk(document)
        layout = ArrayLayout(rows, length, width, _dtype(document), shard_rows)
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{path} does not describe a store of rows ({error}). {AGAIN}") from error
    _check(folder, layout)
    return layout


def read_ragged_layout(folder: Path) -> RaggedLayout:
    """The layout of a store of ragged rows. Raises Damaged naming the document that is missing or off."""
    path = folder / "tokens" / metadata.DOCUMENT
    group, tokens = _load(folder / metadata.DOCUMENT), _load(path)
    lengths = folder / "lengths" / "c" / "0"
    try:
        attributes = cast("dict[str, JSON]", group["attributes"])
        layout = RaggedLayout(
            lengths=np.frombuffer(lengths.read_bytes(), "<i4"),
            length=_integer(attributes["length"]),
            width=_numbers(tokens, "shape")[1],
            dtype=_dtype(tokens),
            shard_tokens=_chunk(tokens)[0],
        )
    except (FileNotFoundError, KeyError, IndexError, TypeError, ValueError) as error:
        raise Damaged(f"{folder} does not describe a store of ragged rows ({error}). {AGAIN}") from error
    _check(folder, layout)
    return layout


def _check(folder: Path, layout: Layout) -> None:
    for name, content in layout.documents().items():
        check_document(folder / name, content)


def _load(path: Path) -> dict[str, JSON]:
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise Damaged(f"{path} is missing, so {path.parent} is no store that can be read. {AGAIN}") from None
    except ValueError as error:
        raise Damaged(f"{path} is damaged: {error}. {AGAIN}") from error
    if not isinstance(document, dict):
        raise Damaged(f"{path} is damaged: it holds no object. {AGAIN}")
    return cast("dict[str, JSON]", document)


def _dtype(document: dict[str, JSON]) -> DType:
    for dtype, storage in STORAGE.items():
        if (storage.zarr, storage.attributes) == (document["data_type"], document["attributes"]):
            return dtype
    raise ValueError(f"data type {document['data_type']!r} with attributes {document['attributes']!r}")


def _chunk(document: dict[str, JSON]) -> list[int]:
    grid = cast("dict[str, dict[str, JSON]]", document["chunk_grid"])
    return _numbers(grid["configuration"], "chunk_shape")


def _numbers(document: dict[str, JSON], name: str) -> list[int]:
    return [_integer(item) for item in cast("list[JSON]", document[name])]


def _integer(value: JSON) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value
