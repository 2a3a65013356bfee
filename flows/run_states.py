"""Whether a run is finished; if not, where it stands."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elf.cache.errors import CacheError
from elf.flows.request import load_request
from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.halts import Halt, find_halt
from elf.pipeline.runs import RESOLVED, RunRecord

LAST = "report"
"""The step that takes all others: with it a run is whole."""
SOON = 256e6
"""Bytes of local files, which a plan reads, that a list of runs waits for."""


@dataclass(frozen=True, slots=True)
class Standing:
    """``halt`` is None where it is ``done``, or where its plan cannot be made again (``words`` say why)."""

    done: bool
    halt: Halt | None
    words: str

    @property
    def brief(self) -> str:
        """For a table."""
        if self.done:
            return "done"
        return self.halt.brief if self.halt is not None else "unfinished"

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        halt = self.halt
        stands = None
        if halt is not None:
            stands = {"step": halt.step, "key": halt.key, "state": halt.state, "missing": halt.missing}
        return {"finished": self.done, "stands_at": stands}


def state_of(record: RunRecord, *, soon: bool = False) -> Standing:
    """By its last step; only of a run that lacks it is the plan made anew, in the store its steps lie in. ``soon``: not
    where that takes long."""
    if LAST in record.steps:
        return Standing(True, None, "")
    if soon and _local_bytes(record.path / RESOLVED) > SOON:
        return Standing(False, None, f"Unfinished; `elf show {record.name}` says where it stands.")
    stores = {artifact.path.parent.parent for artifact in record.steps.values()}
    store = str(stores.pop()) if len(stores) == 1 else os.environ.get("ELF_STORE")
    try:
        request = load_request(str(record.path / RESOLVED), [], store)
        halt = find_halt(request.plan, request.store)
    except (Misconfigured, Failed, CacheError) as error:
        return Standing(False, None, f"Unfinished; what is missing cannot be told: {error}")
    if halt is None:
        return Standing(False, None, "Unfinished: every step is there; the same command links them.")
    return Standing(False, halt, str(halt))


def _local_bytes(settings: Path) -> int:
    """Of all files and folders of this machine that a configuration names."""
    try:
        named = set(re.findall(r"""uri: ["']?path:([^"'\n]+)""", settings.read_text(encoding="utf-8")))
        paths = [Path(each).expanduser() for each in named]
        files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*"))]
        return sum(file.stat().st_size for file in files if file.is_file())
    except OSError:
        return 0  # who makes the plan will say what is wrong
