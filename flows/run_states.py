"""Whether a run is finished; if not, where it stands."""

import os
from dataclasses import dataclass
from typing import Any

from elf.cache.errors import CacheError
from elf.flows.request import load_request
from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.halts import Halt, find_halt
from elf.pipeline.runs import RESOLVED, RunRecord

LAST = "report"
"""The step that takes all others: with it a run is whole."""


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


def state_of(record: RunRecord) -> Standing:
    """By its last step; only of a run that lacks it is the plan made anew, in the store its steps lie in."""
    if LAST in record.steps:
        return Standing(True, None, "")
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
