"""The score table of the report: `metrics.json` of every setting and control as rows of text cells.

A Gen-PPL stands beside its entropy, repeats, empties and token count, always, and under the name of its judge;
rows of different judges never share a table.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elf.stages.intervals import FEW

COUNTS = ("Empty", "Duplicates", "n", "Scored tokens")
"""Columns of counts; n is texts, or seeds × texts per seed."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, a one-line definition, and how a value is written."""

    score: str
    head: str
    meaning: str
    percent: bool = False
    digits: int = 2
    errors: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """A number as text, what is unsure of it, and the reason where there is none."""

    text: str
    errors: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One set of texts under the judge."""

    name: str
    detail: str
    control: bool
    cells: tuple[Cell, ...]
    faults: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that one judge scored; `judge` is None where there was none."""

    judge: Mapping[str, Any] | None
    columns: tuple[Column, ...]
    rows: list[Row] = field(default_factory=list)
    signatures: dict[str, str] = field(default_factory=dict)
    """What computed BLEU and ROUGE, by their headings."""

    @property
    def heads(self) -> list[str]:
        """Headings of the cells of a row, in order."""
        return [*(column.head for column in self.columns), *COUNTS]

    @property
    def signed(self) -> str:
        """The signatures in one line; empty without references."""
        return "; ".join(f"{name} {signature}" for name, signature in self.signatures.items())

    @property
    def warnings(self) -> list[tuple[str, tuple[str, ...]]]:
        """Each warning once, with the rows it is about."""
        said: dict[str, list[str]] = {}
        for row in self.rows:
            for warning in row.warnings:
                said.setdefault(warning, []).append(row.name)
        return [(warning, tuple(names)) for warning, names in said.items()]


OVERLAP = (
    Column("bleu", "BLEU", "against the references, lower-cased, effective order (the paper's)", errors=True),
    Column("bleu_cased", "BLEU, cased", "against the references, sacrebleu's default", errors=True),
    Column("rouge_1", "ROUGE‑1", "F-measure of words against the references, stemmed", errors=True),
    Column("rouge_2", "ROUGE‑2", "the same of word pairs", errors=True),
    Column("rouge_l", "ROUGE‑L", "the same of the longest common subsequence", errors=True),
)
"""Columns of texts that come with references."""
USUAL = {"grid": "logit_normal", "sde_form": "released"}
"""Settings of samplers that go without saying."""
UNPAIRED = {"value": None, "reason": "these texts have no references"}
EARLIER = {"value": None, "reason": "evaluated by an earlier version, which did not know this score"}


def columns_of(
    judge: Mapping[str, Any] | None, copy_score: str, *, paired: bool = False
) -> tuple[Column, ...]:
    """The columns of a table; its judge is named over the number it gave, and without one its columns are left out."""
    n = copy_score.rpartition("_")[2]
    return (
        *(OVERLAP if paired else ()),
        *(_judged(judge["name"]) if judge is not None else ()),
        Column("entropy_ids", "Entropy, own ids", "of the run's own token ids in a text, nats"),
        Column("distinct_1", "Distinct‑1", "different words over all words of a seed", digits=3),
        Column("distinct_2", "Distinct‑2", "different word pairs over all word pairs of a seed", digits=3),
        Column(
            "self_bleu",
            "Self‑BLEU",
            "BLEU‑4 of each text against the others of its seed, 0 to 100: the lower, the more varied. It grows with "
            "the number of texts; at most 1,000 of a seed take part",
            digits=1,
        ),
        Column("repeats_4", "Rep‑4", "word 4-grams that stood earlier in the same text", percent=True),
        Column(copy_score, f"Copy‑{n}", f"word {n}-grams that stand in the training text", percent=True),
    )


def _judged(judge: str) -> tuple[Column, ...]:
    told = f"Gen-PPL ({judge})"
    return (
        Column("gen_ppl", told, "perplexity of the texts under the judge", digits=1, errors=True),
        Column("entropy", "Entropy", "of the judge's token ids in a text, nats", errors=True),
    )


def make_tables(
    scores: Mapping[str, Mapping[str, Any]], controls: Mapping[str, Mapping[str, Any]]
) -> list[Table]:
    """Tables by judge, settings before controls. Values are the parsed `metrics.json` by name."""
    tables: dict[str, Table] = {}
    paired = any("bleu" in metrics["scores"] for metrics in scores.values())
    for group, control in ((scores, False), (controls, True)):
        for name, metrics in group.items():
            judge = metrics["judge"]
            copy_score = next(score for score in metrics["scores"] if score.startswith("copy_"))
            key = f"{judge['content']} {judge['window']} {judge['precision']}" if judge else ""
            columns = columns_of(judge, copy_score, paired=paired)
            table = tables.setdefault(f"{key} {copy_score}", Table(judge, columns))
            table.rows.append(_row(name, metrics, table.columns, control))
            table.signatures.update(_signatures(metrics))
    return list(tables.values())


def _signatures(metrics: Mapping[str, Any]) -> dict[str, str]:
    scores = metrics["scores"]
    told = {
        column.head: scores[column.score].get("signature") for column in OVERLAP if column.score in scores
    }
    return {head: signature for head, signature in told.items() if signature}


def full_name(run: str, name: str) -> str:
    """What a row is called in a table; ``run`` is empty on a page of one run."""
    return f"{run}/{name}" if run else name


def describe_settings(settings: Mapping[str, Any] | None, *, without: Collection[str] = ()) -> str:
    """`SDE · 32 steps · ω 3 · γ 1.5 · EMA weights` from a sample stage's settings; what is usual is not told."""
    if settings is None or "method" not in settings:
        return ""
    weights = f"{'EMA' if settings['weights'] == 'ema' else settings['weights']} weights"
    if "temperature" in settings:
        parts = {
            "method": settings["method"],
            "steps": f"{settings['steps']} steps" if "steps" in settings else "",
            "temperature": f"temperature {settings['temperature']:g}" if settings["temperature"] != 1 else "",
            "top_p": f"top-p {settings['top_p']:g}" if settings["top_p"] != 1 else "",
            "precision": settings.get("precision", ""),
            "weights": weights,
        }
        return " · ".join(part for name, part in parts.items() if part and name not in without)
    grid, form = settings.get("grid", USUAL["grid"]), settings.get("sde_form", USUAL["sde_form"])
    stochastic = settings["method"] == "sde"
    parts = {
        "method": settings["method"].upper(),
        "steps": f"{settings['steps']} steps",
        "grid": "" if grid == USUAL["grid"] else f"{grid} grid",
        "guidance": f"ω {settings['guidance']:g}",
        "gamma": f"γ {settings['gamma']:g}" if stochastic else "",
        "sde_form": f"{form.replace('_', ' ')} form" if stochastic and form != USUAL["sde_form"] else "",
        "input_guidance": f"w {settings['input_guidance']:g}" if settings["input_guidance"] != 1 else "",
        "precision": settings.get("precision", ""),
        "weights": weights,
    }
    return " · ".join(part for name, part in parts.items() if part and name not in without)


def describe_control(settings: Mapping[str, Any] | None) -> str:
    """Where a control's texts come from, from its stage's settings."""
    if settings is None or "control" not in settings:
        return ""
    text = "held-out text" if settings["split"] == "validation" else f"{settings['split']} text"
    told = {
        "real": f"{text}, no model",
        "replaced": f"{text}, {100 * (settings['share'] or 0):.0f} % of tokens redrawn by frequency",
        "unigram": "tokens drawn by frequency",
        "copy": f"sources of {text}, as they are",
        "shuffled": f"{text}, each with the source of another",
        "lead": f"the first {settings.get('words')} words of the sources of {text}",
    }
    return told[settings["control"]]


def _row(name: str, metrics: Mapping[str, Any], columns: Sequence[Column], control: bool) -> Row:
    counts = metrics["counts"]
    seeds = f"{counts['seeds']} × " if counts["seeds"] > 1 else ""
    scores = metrics["scores"]
    cells = [
        _cell(scores.get(column.score, UNPAIRED if column in OVERLAP else EARLIER), column)
        for column in columns
    ]
    tokens = counts.get("scored_tokens")
    cells += [
        Cell(f"{counts['empty']:,}"),
        Cell(f"{counts['duplicates']:,}"),
        Cell(f"{seeds}{counts['texts'] // counts['seeds']:,}", f"< {FEW}" if counts["texts"] < FEW else ""),
        Cell(f"{tokens:,}") if tokens is not None else Cell("–", reason="no judge"),
    ]
    detail = (describe_control if control else describe_settings)(metrics["settings"])
    return Row(name, detail, control, tuple(cells), tuple(metrics["degenerate"]), tuple(metrics["warnings"]))


def _cell(score: Mapping[str, Any], column: Column) -> Cell:
    if score["value"] is None:
        return Cell("–", reason=score["reason"])
    scale, unit, digits = (100, " %", 1) if column.percent else (1, "", column.digits)
    errors = ""
    if column.errors:
        known = [
            f"±{scale * score[key]:.{digits}f} {key.replace('se_', 'SE_')}"
            for key in ("se_seed", "se_item")
            if score[key] is not None
        ]
        errors = "\n".join(known)
    return Cell(f"{scale * score['value']:,.{digits}f}{unit}", errors)
