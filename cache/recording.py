"""Size and digest of all that lies in a folder that is to become an artifact."""

from pathlib import Path
from typing import NamedTuple

from elf.cache.files import digest_file
from elf.cache.manifest import AUX, FileRecord
from elf.cache.opening import read_layout
from elf.cache.parts import read_record
from elf.cache.records import sizes


class Records(NamedTuple):
    """Payload and auxiliary files by path relative to the artifact, "/" between folders."""

    files: dict[str, FileRecord]
    aux: dict[str, FileRecord]


def records(root: Path) -> Records:
    """Size and digest of all files below `root` but the manifest. Raises Damaged on links and devices.

    Shards of embedding stores are not read again: theirs are the digests of what was to be written, and a disk that
    keeps other bytes is found out by whoever reads them, not believed.
    """
    found, written = Records({}, {}), _shard_digests(root)
    for name, size in sizes(root).items():
        group = found.aux if name.split("/")[0] == AUX else found.files
        group[name] = FileRecord(size, written.get(name) or digest_file(root / name))
    return found


def _shard_digests(root: Path) -> dict[str, str]:
    """By path, what the records of finished shards say."""
    known: dict[str, str] = {}
    for folder in (path.parent.parent for path in sorted(root.glob("*/parts/0.json"))):
        layout = read_layout(folder)
        for shard in range(layout.shards):
            name = f"{folder.name}/{layout.shard_name(shard)}"
            known[name] = read_record(folder, layout, shard).digest
    return known
