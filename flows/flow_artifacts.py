"""What a flow run shows in Prefect's UI beside its states: settings, scores, and the report's figures.

The numbers are the report's own. An artifact that cannot be sent is a warning in the log, never a failed run.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from httpx import HTTPError
from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact, create_table_artifact

from elf.cache.manifest import short
from elf.cache.store import Artifact
from elf.flows.request import Request
from elf.flows.score_table import METRICS, PREFIX
from elf.flows.sweep_costs import DONE, Costs, cells_of
from elf.stages.guards import say_fault
from elf.stages.scoretable import Table, make_tables

REPORT = "report"
LEGEND = (
    "Curves: blue is training, its band the 10th to 90th percentile of its steps; orange is held-out text, with "
    "averaged weights, dashed with raw ones."
)


def show_settings(request: Request) -> None:
    """The resolved configuration, the store, and the key of every step."""
    plain = yaml.safe_dump(request.experiment.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    steps = "\n".join(f"| {each.step.name} | `{short(each.key)}` |" for each in request.plan)
    text = (
        f"# {request.experiment.name}\n\nStore: `{request.store.root}`\n\n"
        f"## Steps and their keys\n\n| step | key |\n|:---|:---|\n{steps}\n\n"
        f"## Configuration, resolved\n\n```yaml\n{plain}```\n"
    )
    _send(
        create_markdown_artifact,
        text,
        key=artifact_key(request.experiment.name, "settings"),
        description="The resolved configuration, and the key of every step.",
    )


def show_scores(name: str, steps: Mapping[str, Artifact]) -> None:
    """One table per judge, each row with the settings that made its numbers."""
    for number, table in enumerate(_tables(steps)):
        rows = [
            {"texts of": row.name, "made with": row.detail}
            | {head: _cell(cell.text, cell.errors) for head, cell in zip(table.heads, row.cells, strict=True)}
            for row in table.rows
        ]
        what = "scores" if number == 0 else f"scores-{number + 1}"
        _send(
            create_table_artifact,
            rows,
            key=artifact_key(name, what),
            description="\n".join(f"* {line}" for line in _notes(table)),
        )


def show_report(name: str, steps: Mapping[str, Artifact], page: Path) -> None:
    """The report's figures, and where the page lies; nothing where no report was made."""
    if REPORT in steps:
        show_page(name, page, steps[REPORT].path)


def show_page(name: str, page: Path, folder: Path) -> None:
    """Where a page lies, and the figures of it in ``folder``."""
    found = sorted(folder.glob("*.png"))
    figures = "\n\n".join(f"![{path.stem}]({_data_uri(path)})" for path in found)
    text = f"# {name}\n\nThe whole report: `{page}`\n\n{figures}\n\n{LEGEND}\n"
    _send(
        create_markdown_artifact,
        text,
        key=artifact_key(name, REPORT),
        description="Figures of the report, and where the page lies.",
    )


def show_costs(name: str, costs: Costs) -> None:
    """What each variant of a sweep has for itself, what several share, and what was built of it now."""
    rows = [
        {"variant": row.name or "(shared)"} | dict(zip(DONE, cells_of(row, planned=False), strict=True))
        for row in costs.rows
    ]
    description = (
        "Steps of each variant that no other has, and above them what several share; their time and bytes."
    )
    _send(create_table_artifact, rows, key=artifact_key(name, "costs"), description=description)


def artifact_key(name: str, what: str) -> str:
    """Prefect takes lower-case letters, digits and dashes only."""
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name.lower())
    return f"elf-{plain}-{what}"


def _tables(steps: Mapping[str, Artifact]) -> list[Table]:
    groups: dict[bool, dict[str, Mapping[str, Any]]] = {True: {}, False: {}}
    for step, artifact in steps.items():
        if step.startswith(PREFIX):
            metrics = json.loads((artifact.path / METRICS).read_text(encoding="utf-8"))
            groups[metrics["samples"]["stage"] == "sample"][step.removeprefix(PREFIX)] = metrics
    return make_tables(groups[True], groups[False])


def _notes(table: Table) -> Iterator[str]:
    """What must stand beside the numbers: what they mean, and which must not be believed."""
    if table.judge is None:
        yield "No judge was named, so there is no Gen-PPL."
    for column in table.columns:
        yield f"{column.head}: {column.meaning}"
    for row in table.rows:
        for fault in row.faults:
            told = say_fault(row.name, fault, control=row.control)
            yield told if row.control else f"**{told}**"
    for warning, names in table.warnings:
        yield f"{', '.join(names)}: {warning}"


def _cell(text: str, errors: str) -> str:
    return " ".join([text, *errors.split("\n")]).strip()


def _data_uri(path: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def _send(create: Callable[..., object], content: Any, *, key: str, description: str) -> None:
    try:
        create(content, key=key, description=description)
    except (HTTPError, OSError) as error:
        get_run_logger().warning(f"The artifact {key} could not be sent: {error}")
