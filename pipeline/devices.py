"""What a step computed on, kept beside what it made, so that its seconds can be told as those of devices.

``aux/devices.jsonl`` has a line for every stretch in which the stage began to work: one that was killed and went on
elsewhere has lines of both. No part of any key or content; artifacts made before there was such a file have none.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from elf.cache.files import make_folder, writing

FILE = Path("aux", "devices.jsonl")


@dataclass(frozen=True, slots=True)
class Devices:
    """``count`` devices of one ``kind`` (``cpu``: hosts; ``cuda``: GPUs) that go by ``name``, used by ``processes``;
    ``cores`` are those of a host that its processes may use together."""

    kind: str
    name: str
    count: int
    processes: int
    cores: int


def note_devices(folder: Path, devices: Devices) -> None:
    """Add a line of this stretch to the folder of a step."""
    path = folder / FILE
    make_folder(path.parent)
    with writing(path), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(devices), sort_keys=True) + "\n")


def read_devices(folder: Path) -> tuple[Devices, ...]:
    """What the artifact in ``folder`` was computed on, each once; empty where that was not told or cannot be read."""
    try:
        lines = (folder / FILE).read_text(encoding="utf-8").splitlines()
        return tuple(dict.fromkeys(Devices(**json.loads(line)) for line in lines))
    except (OSError, ValueError, TypeError):
        return ()
