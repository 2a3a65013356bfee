"""What can happen to a store of rows on a disk: each harm is done to shard 1 or to the description."""

import json
from collections.abc import Callable
from pathlib import Path

from elf.cache.manifest import SEAL, seal


def put(path: Path, raw: bytes) -> None:
    """Other bytes under a name, whatever its mode."""
    path.unlink()
    path.write_bytes(raw)


def halve(path: Path) -> None:
    put(path, path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path, place: int = 5) -> None:
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    put(path, bytes(raw))


def reword(manifest: Path, old: str, new: str) -> None:
    """Have a manifest say another thing, with the digest that goes with it."""
    said = json.loads(manifest.read_text().replace(old, new))
    right = seal({name: value for name, value in said.items() if name != SEAL})
    assert right != said[SEAL], f"{manifest} does not say {old}"
    put(manifest, json.dumps(said | {SEAL: right}).encode())


SHARD = "c/1/0/0"
HARM: dict[str, tuple[Callable[[Path], object], str]] = {
    "shard cut": (lambda store: halve(store / SHARD), r"[Ss]hard 1 of"),
    "shard empty": (lambda store: put(store / SHARD, b""), r"[Ss]hard 1 of .* holds 0 bytes"),
    "shard gone": (lambda store: (store / SHARD).unlink(), r"[Ss]hard 1 of .* is missing"),
    "bit flipped": (lambda store: flip(store / SHARD), r"[Ss]hard 1 of"),
    "description cut": (lambda store: halve(store / "zarr.json"), r"zarr\.json is damaged"),
    "description gone": (lambda store: (store / "zarr.json").unlink(), r"zarr\.json is missing"),
}
"""By name: what is done to a store's folder, and what the refusal to read it says."""
