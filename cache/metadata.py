"""The JSON documents of zarr v3 that describe a store: arrays of raw little-endian chunks in a group."""

import json
from collections.abc import Mapping, Sequence

from elf.cache.manifest import JSON

DOCUMENT = "zarr.json"
_RAW: JSON = {"name": "bytes", "configuration": {"endian": "little"}}
_CRC: JSON = {"name": "crc32c"}


def sharded_array(
    shape: Sequence[int],
    *,
    shard: Sequence[int],
    chunk: Sequence[int],
    data_type: str,
    fill: JSON,
    attributes: Mapping[str, JSON],
) -> bytes:
    """An array whose files are shards: uncompressed inner chunks, then the index with its crc32c."""
    codec: JSON = {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": list(chunk),
            "codecs": [_RAW],
            "index_codecs": [_RAW, _CRC],
            "index_location": "end",
        },
    }
    return _array(shape, shard, data_type, fill, [codec], attributes)


def plain_array(length: int, data_type: str) -> bytes:
    """A vector in one raw chunk."""
    return _array([length], [length], data_type, 0, [_RAW], {})


def group(attributes: Mapping[str, JSON]) -> bytes:
    """A folder of arrays."""
    return _encode({"attributes": attributes, "zarr_format": 3, "node_type": "group"})


def _array(
    shape: Sequence[int],
    chunk: Sequence[int],
    data_type: str,
    fill: JSON,
    codecs: Sequence[JSON],
    attributes: Mapping[str, JSON],
) -> bytes:
    return _encode(
        {
            "shape": list(shape),
            "data_type": data_type,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": fill,
            "codecs": codecs,
            "attributes": attributes,
            "zarr_format": 3,
            "node_type": "array",
            "storage_transformers": [],
        }
    )


def _encode(document: Mapping[str, JSON]) -> bytes:
    return json.dumps(document, indent=2).encode()
