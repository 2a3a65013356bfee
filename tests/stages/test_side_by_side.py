"""One page of several runs: what stands in one table, what differs, and what is shown once."""

import re
from pathlib import Path

import pytest
from browser import BROWSER, OVERFLOWING, ask_page
from run_folder import RunFolder, made_up_metrics

from elf.pipeline.config import load_experiment
from elf.stages.config import Experiment
from elf.stages.side_by_side import Run, compose_runs
from elf.stages.spending import Spending

SHIPPED = Path(__file__).parents[2] / "configs"
SDE = {
    "method": "sde", "steps": 16, "guidance": 2.0, "gamma": 1.5, "input_guidance": 1.0, "weights": "ema", "count": 64,
}  # fmt: skip
HELDOUT = {"control": "real", "split": "validation", "share": None}


def make_run(
    root: Path, name: str, *overrides: str, judge: str | None = "SmolLM2-135M", steps: int = 0
) -> Run:
    """A run with two settings along guidance, and the real text that all runs share."""
    folder = RunFolder(root / name, salt=name, steps=steps)
    for guidance, ppl, entropy in ((1.0, 80.0, 3.4), (2.0, 20.0, 3.0)):
        settings = SDE | {"guidance": guidance}
        metrics = made_up_metrics(ppl if judge else None, entropy=entropy, judge=judge, settings=settings)
        folder.add_texts(f"sde-{guidance:g}", [f"made by {name}", f"more by {name}"], metrics)
    real = made_up_metrics(24.0 if judge else None, entropy=3.2, judge=judge, settings=HELDOUT)
    folder.add_texts("real", ["held-out words"], real)
    overrides = (f"name={name}", *overrides)
    return Run(name, load_experiment("quickstart", Experiment, overrides, SHIPPED), folder.inputs)


def words(html: str) -> str:
    text = re.sub(r"<(style|svg)\b.*?</\1>", "", html, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", text))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("runs")
    narrow = ("train.model.hidden=128", "compute.train.threads=1", "report.samples=1", "sample.0.count=9")
    return compose_runs([make_run(root, "wide"), make_run(root, "narrow", *narrow)]).html


def test_rows_of_one_judge_stand_in_one_table_and_shared_real_text_once(page: str):
    assert page.count('<table class="scores">') == 1
    rows = re.findall(r'<span class="name">([^<]*)</span>', page)
    assert rows == ["wide/sde-1", "wide/sde-2", "narrow/sde-1", "narrow/sde-2", "real"]
    assert "Judged by" not in words(page)


def test_what_differs_is_told_and_what_changes_no_text_is_not(page: str):
    said = words(page)
    assert "setting wide narrow train.model.hidden 192 128" in said
    assert "threads" not in said
    assert "sample.0" not in said


def test_each_run_has_a_line_of_its_own_on_the_frontier(page: str):
    said = words(page)
    for run in ("wide", "narrow"):
        assert f"{run} · SDE · 16 steps · γ 1.5 3.20 40.0" in said
        assert f">{run} · SDE · 16 steps · γ 1.5</text>" in page


def test_samples_of_one_setting_stand_beside_each_other(page: str):
    headings = re.findall(r"<header><h3>([^<]*)</h3>", page)
    assert headings == ["wide · sde-1", "narrow · sde-1", "wide · sde-2", "narrow · sde-2", "real text"]
    assert "made by narrow" in page
    assert "more by narrow" not in page, "as many as the run that shows fewest"


def test_keys_show_what_is_shared(page: str):
    keys = dict(re.findall(r"<tr><td>(\w+)</td><td>(\w{12})</td><td>\w{12}</td></tr>", page))
    rows = re.findall(r"<tr><td>(tokenize|train)</td><td>(\w{12})</td><td>(\w{12})</td></tr>", page)
    assert {name: one == two for name, one, two in rows} == {"train": False, "tokenize": True}
    assert "encode" in keys


def test_what_each_cost_stands_on_the_page_where_it_is_told(tmp_path: Path, page: str):
    assert 'id="costs"' not in page
    runs = [make_run(tmp_path, name, f"data.train.text={name}") for name in ("one", "two")]
    rows = (("(shared)", "3", "0", "3", "4 s"), ("one", "2", "2", "0", "9 s"))
    told = Spending(("variant", "its steps", "built now", "reused", "time"), rows, "13 s in all.")
    said = words(compose_runs(runs, told).html)
    assert "variant its steps built now reused time (shared) 3 0 3 4 s one 2 2 0 9 s" in said
    assert "13 s in all." in said


def test_the_page_needs_nothing_beside_it(page: str):
    assert not re.search(r"https?:|@import|url\((?!#)|<script", page)
    ids, links = re.findall(r' id="([^"]*)"', page), re.findall(r'href="#([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert {*links} <= {*ids}


def test_runs_judged_differently_have_tables_of_their_own(tmp_path: Path):
    runs = [make_run(tmp_path, "one", judge="GPT-2"), make_run(tmp_path, "two", judge=None)]
    said = words(compose_runs(runs).html)
    assert "Judged by GPT-2, window 1,024, float32" in said
    assert "Without a judge" in said


def test_training_curves_lie_over_each_other(tmp_path: Path):
    page = compose_runs([make_run(tmp_path, name, judge=None, steps=8) for name in ("one", "two")])
    assert [each.name for each in page.drawings if each.name.startswith("curves")] == [
        "curves-loss", "curves-ce", "curves-l2",
    ]  # fmt: skip
    loss = next(each for each in page.drawings if each.name == "curves-loss")
    assert "one" in loss.svg
    assert "two" in loss.svg
    assert loss.svg in page.html


def test_hostile_names_and_texts_stay_words(tmp_path: Path):
    evil = "<script>alert(1)<script>"
    runs = [
        make_run(tmp_path, "one", judge=None),
        make_run(tmp_path, "two", f"data.train.text={evil}", judge=None),
    ]
    html = compose_runs(runs).html
    assert evil not in html
    assert "&lt;script&gt;alert(1)" in html


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_overflows_in_a_browser(tmp_path: Path, width: int):
    names = [f"a-run-of-a-rather-long-name-{number}" for number in range(3)]
    runs = [make_run(tmp_path, name, f"train.steps={len(name)}", f"data.train.text={name}") for name in names]
    assert ask_page(tmp_path, compose_runs(runs).html, width, OVERFLOWING) == f"fits {width}"
