"""What is said of work: plain lines without exponents or control codes, nothing secret in the log."""

import io
from pathlib import Path

import pytest

from elf.pipeline.progress import LineProgress, LoggedProgress, figures, fit


def test_lines_have_counts_as_people_write_them() -> None:
    said = io.StringIO()
    with LineProgress(said, width=120).bar("pack", 12_345_678, unit="rows", done=45_678) as bar:
        bar.advance(12_300_000, loss=3.21456, tokens_per_s=283_900.4, lr=0.00025)
    line = said.getvalue()
    assert line.startswith("pack: 12,345,678 of 12,345,678 rows  ")
    assert line.rstrip().endswith("/s  loss 3.215  tokens_per_s 283,900  lr 0.00025")
    assert "e+" not in line
    assert "\x1b" not in line


def test_what_is_left_is_told_while_something_is() -> None:
    said = io.StringIO()
    with LineProgress(said).bar("train", 400, unit="steps") as bar:
        bar.advance(100)
    assert said.getvalue().rstrip().endswith(" left")


def test_a_wide_terminal_shows_more_figures_and_none_is_cut_in_two() -> None:
    shown = {"loss": 3.214, "tok/s": "18,123", "mfu": "31 %", "l2": 1.25, "ce": 4.5, "lr": 0.002}
    assert fit(shown, 26) == "loss 3.214  tok/s 18,123 …"
    assert fit(shown, 36) == "loss 3.214  tok/s 18,123  mfu 31 % …"
    assert fit(shown, 66) == "loss 3.214  tok/s 18,123  mfu 31 %  l2 1.25  ce 4.5  lr 0.002"
    assert fit({"a rather long name": "of a thing"}, 12) == "a rather lo…"
    assert fit({}, 26) == ""


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_line_is_as_wide_as_the_terminal_at_most(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    said = io.StringIO()
    with LineProgress(said).bar("train", 2000, unit="steps", done=1) as bar:
        shown = {"loss": 3.141, "tok/s": "13,045", "mfu": "13 %", "l2": 1.333, "ce": 6.156, "lr": 0.004}
        bar.advance(1, **shown)
    line = said.getvalue().rstrip("\n")
    assert line.startswith("train: 2 of 2,000 steps  ")
    assert len(line) <= columns
    assert line.endswith("lr 0.004" if columns == 200 else " …")


def test_figures_keep_what_is_text() -> None:
    assert figures({"loss": float("nan"), "view": "plain"}) == "loss nan  view plain"


def test_the_log_holds_what_was_said_but_nothing_secret(tmp_path: Path) -> None:
    said = io.StringIO()
    logged = LoggedProgress(LineProgress(said), tmp_path / "log.txt")
    logged.note("fetching from https://user:hunter22@mirror/x")
    with logged.bar("fetch", None, unit="files") as bar:
        bar.advance(2)
    log = (tmp_path / "log.txt").read_text()
    for text in (log, said.getvalue()):
        assert "https://***@mirror/x" in text
        assert "hunter22" not in text
    assert "fetch: 0 of ? files" in log
    assert "fetch: finished after" in log


@pytest.mark.parametrize("unit", ["", "rows"])
def test_a_bar_without_news_says_nothing_twice(unit: str) -> None:
    said = io.StringIO()
    with LineProgress(said, every=0).bar("work", 2, unit=unit) as bar:
        bar.advance(1)
        bar.advance(1)
    assert said.getvalue().count("\n") == 2
