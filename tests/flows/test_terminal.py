"""What a person watching a run sees, on a terminal of 80 columns and in a pipe."""

import io
import re
from pathlib import Path

import pytest
import toy_stages
from rich.console import Console

from elf.cache.store import Store
from elf.flows.terminal import LiveProgress, Narrator, make_progress
from elf.pipeline.plan import Plan, Step
from elf.pipeline.progress import LineProgress
from elf.pipeline.runner import materialise


@pytest.fixture
def plan() -> Plan:
    words = Step("words-of-a-rather-long-name", toy_stages.WORDS, toy_stages.Words())
    count = Step("count", toy_stages.COUNT, toy_stages.Count(), {"words": words.name})
    return Plan([words, count])


def watched(plan: Plan, store: Store, *, terminal: bool) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=80, force_terminal=terminal, soft_wrap=not terminal)
    progress = LiveProgress(console) if terminal else LineProgress(io.StringIO())
    materialise(plan, store, watch=Narrator(console, plan), progress=progress)
    return stream.getvalue()


def drawn_lines(shown: str) -> list[str]:
    """Everything that was ever drawn, line by line, without the terminal's control codes."""
    return re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown))


def test_each_step_has_its_line(plan: Plan, tmp_path: Path) -> None:
    lines = watched(plan, Store(tmp_path), terminal=False).splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["begins", "words-of-a-rather-long-name"],
        ["built", "words-of-a-rather-long-name"],
        ["begins", "count"],
        ["built", "count"],
    ]
    assert len({line.index(plan["count"].key[:12]) for line in lines if " count " in line}) == 1


def test_a_second_run_says_what_was_reused(plan: Plan, tmp_path: Path) -> None:
    watched(plan, Store(tmp_path), terminal=False)
    again = watched(plan, Store(tmp_path), terminal=False).splitlines()
    assert [line.split()[0] for line in again] == ["reused", "reused"]


def test_no_line_is_wider_than_the_terminal(plan: Plan, tmp_path: Path) -> None:
    shown = drawn_lines(watched(plan, Store(tmp_path), terminal=True))
    assert any("counting" in line for line in shown)
    assert max(map(len, shown)) <= 80


def test_bars_show_count_unit_and_figures_within_80_columns() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=80, force_terminal=True, color_system=None)
    progress = LiveProgress(console)
    with progress.bar("training with a very long label", 400, unit="steps", done=100) as bar:
        bar.advance(20, loss=3.214, lr=0.002, grad_norm=12.5, tokens_per_s=1800.0)
        progress.display.refresh()
    shown = stream.getvalue()
    assert "120/400 steps" in shown
    assert "loss 3.214" in shown
    assert "…" in shown
    assert max(map(len, drawn_lines(shown))) <= 80
    assert not progress.display.tasks


def test_notes_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    LiveProgress(Console(width=80)).note("3 rows [not markup] 100 %")
    assert capsys.readouterr().out.strip() == "3 rows [not markup] 100 %"


def test_without_a_terminal_progress_is_plain_lines() -> None:
    assert isinstance(make_progress(Console(file=io.StringIO())), LineProgress)
