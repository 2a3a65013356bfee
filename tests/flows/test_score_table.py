"""The score table as a terminal of 80 columns shows it, made from what the evaluate stage writes."""

import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from elf.cache.errors import Damaged
from elf.cache.store import Artifact
from elf.flows.score_table import ScoreRow, print_scores, read_scores, score_notes, score_table
from elf.stages.judge import Judged
from elf.stages.scores import Floor, counts_of, find_faults, find_warnings, measure
from elf.stages.scores import score_table as scores_of
from elf.stages.texts import Text

GOOD = ["the nation is at peace with all the world", "we have paid the public debt of the union"]
DULL = ["the the the the the the the the the"] * 2


def metrics(
    texts: list[str], *, judge: str | None, stage: str, references: list[str] | None = None
) -> dict[str, Any]:
    """What ``metrics.json`` holds for ``texts``, each judged alike."""
    made = [
        Text(i, 0, text, tuple(range(len(text.split()))), reference=references[i] if references else None)
        for i, text in enumerate(texts)
    ]
    judged = None
    if judge is not None:
        one = {"nll": 30.0, "counted": 9, "tokens": 10, "entropy": 2.1, "truncated": False, "end_marks": 0}
        judged = [Judged(**one) for _ in made]
    measured = measure(made, [(0, 2)] * len(made), judged)
    scores, counts = scores_of(measured, copy_ngram=8), counts_of(measured)
    return {
        "judge": {"name": judge} if judge is not None else None,
        "samples": {"stage": stage},
        "counts": counts,
        "scores": scores,
        "entropy_floor": asdict(Floor(2.0, "test")),
        "degenerate": find_faults(scores, counts, Floor(2.0, "test")),
        "warnings": find_warnings(scores, counts),
    }


def written(folder: Path, content: dict[str, Any]) -> Artifact:
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps(content))
    return Artifact(folder, None)  # type: ignore[arg-type]  # only the path is read


def shown(rows: list[ScoreRow]) -> str:
    stream = io.StringIO()
    Console(file=stream, width=80).print(score_table(rows))
    return stream.getvalue()


def test_samples_stand_before_controls_and_fit_80_columns(tmp_path: Path) -> None:
    steps = {
        "evaluate-real": written(tmp_path / "a", metrics(GOOD, judge="Judge", stage="control")),
        "encode": Artifact(tmp_path, None),  # type: ignore[arg-type]
        "evaluate-sde-64-w4": written(tmp_path / "b", metrics(GOOD, judge="Judge", stage="sample")),
    }
    rows = read_scores(steps)
    assert [row.name for row in rows] == ["sde-64-w4", "real"]
    text = shown(rows)
    assert max(map(len, text.splitlines())) <= 80
    assert "28.0" in text  # exp(30 / 9)
    assert next(score_notes(rows)).startswith("Gen-PPL (Judge)")


@pytest.mark.parametrize("paired", [False, True])
def test_a_perplexity_never_stands_alone(tmp_path: Path, paired: bool) -> None:
    """Beside it: entropy, repeats, empties, tokens that were scored."""
    references = GOOD if paired else None
    row = ScoreRow("sde", metrics([GOOD[0], ""], judge="Judge", stage="sample", references=references))
    told = " ".join(shown([row]).splitlines()[0].split())
    notes = list(score_notes([row]))
    assert {"Gen-PPL", "entropy", "empty", "texts"} <= set(told.split())
    assert "Scored tokens: sde 9" in notes
    assert ("repeats" in told) != paired
    assert ("Repeated 4-grams: sde 0.0 %" in notes) == paired
    many = [ScoreRow(f"r{i}", row.metrics) for i in range(9)]
    assert "Scored tokens of each row stand in the report." in list(score_notes(many))


def test_without_a_judge_there_is_no_perplexity_and_it_says_so(tmp_path: Path) -> None:
    rows = read_scores({"evaluate-ode": written(tmp_path / "a", metrics(GOOD, judge=None, stage="sample"))})
    assert "–" in shown(rows)
    assert "No judge was named" in next(score_notes(rows))


def test_a_degenerate_row_is_named_with_its_reason(tmp_path: Path) -> None:
    dull = metrics(DULL, judge=None, stage="sample")
    dull["degenerate"] = ["entropy 0.00 below 2.00 (test)"]
    rows = read_scores({"evaluate-ode": written(tmp_path / "a", dull)})
    assert list(score_notes(rows))[1] == "ode is degenerate: entropy 0.00 below 2.00 (test)"


def test_a_control_is_no_degenerate_row(tmp_path: Path) -> None:
    """It is what it was made to be; that the guard would stop it is said apart from the model's rows."""
    rows = [
        ScoreRow(name, metrics(GOOD, judge="Judge", stage=stage) | {"degenerate": ["Gen-PPL above 300"]})
        for name, stage in (("ode", "sample"), ("replaced", "control"), ("unigram", "control"))
    ]
    told = [note for note in score_notes(rows) if "above 300" in note]
    assert told == [
        "ode is degenerate: Gen-PPL above 300",
        "replaced, unigram (controls) are beyond the guard: Gen-PPL above 300",
    ]
    styles = [row.style for row in score_table(rows).rows]
    assert [bool(style) for style in styles] == [True, False, False]


def test_notes_tell_variety_with_its_references_and_what_is_rough(tmp_path: Path) -> None:
    steps = {
        f"evaluate-{name}": written(tmp_path / name, metrics(texts, judge=None, stage="sample"))
        for name, texts in (("good", GOOD), ("dull", DULL))
    }
    notes = list(score_notes(read_scores(steps)))
    assert "Self-BLEU" in notes[-3]
    assert "dull 100 (of 1)" in notes[-3]
    assert notes[-2:] == [
        "all rows: 2 texts: fewer than 200, the numbers are rough",
        "dull: 1 of 2 texts word for word like an earlier one",
    ]


def test_long_names_are_told_to_their_end(tmp_path: Path) -> None:
    name = "sde-steps=16-guidance=2.5-gamma=0.5"
    text = shown([ScoreRow(name, metrics(GOOD, judge="Judge", stage="sample"))])
    assert max(map(len, text.splitlines())) <= 80
    assert "".join(line[:16].strip() for line in text.splitlines()) == name


def test_a_cut_metrics_file_is_an_error_with_a_cure(tmp_path: Path) -> None:
    artifact = written(tmp_path / "a", {})
    (artifact.path / "metrics.json").write_text('{"scores"')
    with pytest.raises(Damaged, match="--force"):
        read_scores({"evaluate-ode": artifact})


def test_where_every_text_is_empty_there_is_no_count_of_tokens() -> None:
    rows = [ScoreRow("sde", metrics(["", ""], judge="GPT-2", stage="sample"))]
    assert "Scored tokens: sde 0" in list(score_notes(rows))


@pytest.mark.parametrize("columns", [60, 80])
def test_names_and_figures_are_whole_on_a_narrow_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    row = ScoreRow("replaced", metrics([*GOOD, ""], judge="Judge", stage="sample"))
    print_scores(Console(width=columns, force_terminal=True, color_system=None), [row, row])
    head, first, *others = capsys.readouterr().out.splitlines()
    assert head.split() == ["Gen-PPL", "entropy", "distinct-2", "repeats", "copies", "empty", "texts"]
    assert first.startswith("replaced ")
    assert "…" not in head + first
    assert max(map(len, others[1:])) <= columns
