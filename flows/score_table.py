"""The scores of a run side by side: what the model made, and texts that no model made."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from elf.cache.errors import Damaged
from elf.cache.store import Artifact
from elf.flows.plan_printing import WIDTH, print_wrapped
from elf.pipeline.wording import DASH
from elf.stages.guards import is_control, say_fault

PREFIX = "evaluate-"
METRICS = "metrics.json"
COLUMNS = ("Gen-PPL", "entropy", "distinct-2", "repeats", "copies", "empty", "texts")
PAIRED_COLUMNS = ("BLEU", "ROUGE-L", "Gen-PPL", "entropy", "copies", "empty", "texts")
"""Columns where texts come with references."""
OVERLAP_NOTES = {
    "bleu": "BLEU",
    "bleu_cased": "BLEU, cased",
    "rouge_1": "ROUGE-1",
    "rouge_2": "ROUGE-2",
    "rouge_l": "ROUGE-L",
    "rouge_l_unstemmed": "ROUGE-L, unstemmed",
}
"""Scores told under the table, with their signatures."""
NAMED = 3
"""Rows that a note calls by their names; more are counted."""
LISTED = 8
"""Rows whose self-BLEU is told under the table."""
UNPAIRED: Mapping[str, Any] = {"value": None}


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """One set of texts: its name and what ``metrics.json`` holds about it."""

    name: str
    metrics: Mapping[str, Any]

    def cells(self) -> dict[str, str]:
        """Every column's text by its heading."""
        scores: Mapping[str, Any] = self.metrics["scores"]
        name = "entropy" if scores["entropy"]["value"] is not None else "entropy_ids"
        copies = next(key for key in scores if key.startswith("copy_"))
        return {
            "BLEU": _with_error(scores.get("bleu", UNPAIRED), 3),
            "ROUGE-L": _with_error(scores.get("rouge_l", UNPAIRED), 3),
            "Gen-PPL": _with_error(scores["gen_ppl"], 4),
            "entropy": _starred(scores[name]["value"], starred=name == "entropy_ids"),
            "distinct-2": _number(scores["distinct_2"]["value"], 3),
            "repeats": _percent(scores["repeats_4"]["value"]),
            "copies": _percent(scores[copies]["value"]),
            "empty": str(self.metrics["counts"]["empty"]),
            "texts": str(self.metrics["counts"]["texts"]),
        }


def read_scores(steps: Mapping[str, Artifact]) -> list[ScoreRow]:
    """Scores among the finished steps of a run, samples first, in the order given."""
    rows: list[ScoreRow] = []
    for step, artifact in steps.items():
        if not step.startswith(PREFIX):
            continue
        path = artifact.path / METRICS
        try:
            rows.append(ScoreRow(step.removeprefix(PREFIX), json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError) as error:
            raise Damaged(
                f"{path} cannot be read: {error}. Run step {step} with --force to build it again."
            ) from error
    return sorted(rows, key=lambda row: row.metrics["samples"]["stage"] != "sample")


def print_scores(out: Console, rows: list[ScoreRow]) -> None:
    """The table and what must stand under it; where there is no room for the table it is not cut."""
    table = score_table(rows)
    least = Measurement.get(out, out.options.update(width=WIDTH), table).minimum
    if least > out.width:
        table.width = least
    out.print(table, soft_wrap=True)
    for note in score_notes(rows):
        print_wrapped(out, note, "dim")


def score_table(rows: list[ScoreRow]) -> Table:
    """The rows as a table that fits 80 columns."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("", max_width=16, overflow="fold")
    paired = any(_has_bleu(row) for row in rows)
    columns = PAIRED_COLUMNS if paired else COLUMNS
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        cells = row.cells()
        marked = row.metrics["degenerate"] and not is_control(row.metrics)
        table.add_row(row.name, *(cells[name] for name in columns), style="yellow" if marked else "")
    return table


def score_notes(rows: list[ScoreRow]) -> Iterator[str]:
    """What must stand under the table: whose perplexity it is, and which rows must not be believed."""
    judges = {row.metrics["judge"]["name"] for row in rows if row.metrics["judge"] is not None}
    if judges:
        yield f"Gen-PPL ({', '.join(sorted(judges))}), lower is more fluent; entropy in nats."
        yield from _guard_notes([row for row in rows if row.metrics["judge"] is not None])
    else:
        yield "No judge was named: no Gen-PPL; entropy (*) is of the run's own token ids."
    yield from _overlap_notes([row for row in rows if _has_bleu(row)])
    for control in (False, True):
        alike = [row for row in rows if is_control(row.metrics) is control]
        for fault, names in _said(alike, "degenerate"):
            yield say_fault(_named(names, rows), fault, control=control, several=len(names) > 1)
    yield from _variety_notes(rows)
    for warning, names in _said(rows, "warnings"):
        yield f"{_named(names, rows)}: {warning}"


def _guard_notes(rows: list[ScoreRow]) -> Iterator[str]:
    """What a perplexity is not to be read without and has no column: its tokens; repeats where BLEU has their place."""
    if len(rows) > LISTED:
        yield "Scored tokens of each row stand in the report."
        return
    # Where every text is empty, the judge read none and there is no count.
    tokens = ", ".join(f"{row.name} {row.metrics['counts'].get('scored_tokens', 0):,}" for row in rows)
    yield f"Scored tokens: {tokens}"
    if paired := [row for row in rows if _has_bleu(row)]:
        repeats = (f"{row.name} {_percent(row.metrics['scores']['repeats_4']['value'])}" for row in paired)
        yield f"Repeated 4-grams: {', '.join(repeats)}"


def _said(rows: list[ScoreRow], what: str) -> Iterator[tuple[str, list[str]]]:
    """Each warning or fault once, with the rows it is about."""
    said: dict[str, list[str]] = {}
    for row in rows:
        for each in row.metrics[what]:
            said.setdefault(each, []).append(row.name)
    yield from said.items()


def _named(names: list[str], rows: list[ScoreRow]) -> str:
    if len(names) == len(rows) > 1:
        return "all rows"
    return ", ".join(names) if len(names) <= NAMED else f"{len(names)} rows"


def _variety_notes(rows: list[ScoreRow]) -> Iterator[str]:
    """Self-BLEU, which means nothing without the number of its references."""
    scores = {row.name: row.metrics["scores"].get("self_bleu", UNPAIRED) for row in rows}
    known = {name: score for name, score in scores.items() if score["value"] is not None}
    if len(known) > LISTED:
        yield "Self-BLEU of each row stands in the report."
    elif known:
        values = ", ".join(
            f"{name} {_number(score['value'], 3)} (of {score['references']})" for name, score in known.items()
        )
        yield f"Self-BLEU, lower is more varied; comparable for the same number of references: {values}"


def _overlap_notes(rows: list[ScoreRow]) -> Iterator[str]:
    """The other conventions of BLEU and ROUGE, each with what computed it."""
    for score, name in OVERLAP_NOTES.items():
        values = ", ".join(f"{row.name} {_number(row.metrics['scores'][score]['value'], 3)}" for row in rows)
        if rows:
            yield f"{name}: {values} ({rows[0].metrics['scores'][score]['signature']})"
    if rows:
        yield "No ROUGE-Lsum: sampled texts hold no line ends to split sentences at."


def _has_bleu(row: ScoreRow) -> bool:
    return "bleu" in row.metrics["scores"]


def _starred(value: float | None, *, starred: bool) -> str:
    return _number(value, 3) + ("*" if starred and value is not None else "")


def _with_error(score: Mapping[str, Any], digits: int) -> str:
    error = score.get("se_seed")
    value = _number(score["value"], digits)
    return value if error is None else f"{value} ±{_number(error, 2)}"


def _number(value: float | None, digits: int) -> str:
    if value is None:
        return DASH
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}" if abs(value) >= 1 else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:.1f} %"
