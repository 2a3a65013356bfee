"""``elf ledger RUN…``: what runs cost, in tokens, operations and seconds, with all they rest on, each artifact once."""

import json
from collections.abc import Sequence

from rich.table import Table

from elf.cache.store import Artifact
from elf.flows.plan_printing import print_wrapped
from elf.flows.request import RUNS
from elf.flows.terminal import make_console
from elf.pipeline.errors import Failed
from elf.pipeline.runs import RunRecord, read_run


def show_ledger(names: Sequence[str], *, as_json: bool) -> None:
    """Print the ledger of one run or of several together. Raises Failed where there is nothing to tell of."""
    from elf.stages.ledger import LEFT_OUT, keep_ledger
    from elf.stages.ledger_text import rows_of_ledger, sentences

    records = [read_run(RUNS, name) for name in dict.fromkeys(names)]
    ledger = keep_ledger(_artifacts(records))
    if as_json:
        print(json.dumps({"runs": [record.name for record in records], **ledger.plain()}, indent=1))
        return
    out = make_console()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("step", overflow="fold")
    for header in ("tokens", "operations", "time", "device time"):
        table.add_column(header, justify="right", no_wrap=True)
    for row in rows_of_ledger(ledger):
        style, indent = ("dim", "  ") if row.part else (None, "")
        table.add_row(
            f"{indent}{row.name}", row.tokens, row.operations, row.time, row.device_time, style=style
        )
    table.rows[-1].style = "bold"
    out.print(table)
    out.print()
    for sentence in (*sentences(ledger), LEFT_OUT):
        print_wrapped(out, sentence)


def _artifacts(records: Sequence[RunRecord]) -> dict[str, Artifact]:
    """Of all runs, in the order in which they were built; one that several have goes by the first one's name."""
    found: dict[str, Artifact] = {}
    seen: set[str] = set()
    for record in records:
        for step, artifact in sorted(record.steps.items(), key=lambda each: _begun(each[1])):
            key = str(artifact.manifest.fingerprint)
            if key not in seen:
                seen.add(key)
                found[f"{record.name}/{step}" if len(records) > 1 else step] = artifact
    if not found:
        raise Failed(
            f"No step of {', '.join(record.name for record in records)} is in the store, so there is nothing to tell "
            "of: run it again with `elf run`."
        )
    return found


def _begun(artifact: Artifact) -> str:
    return artifact.manifest.provenance.started
