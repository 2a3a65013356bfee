"""`elf table`: ours found by key beside published, what is missing with its price, the protocol in words."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from judging import make_artifact
from run_folder import made_up_metrics
from typer.testing import CliRunner

from elf.flows.cli import app
from elf.flows.request import load_request, shipped_folder
from elf.flows.table_needs import needs_of
from elf.flows.table_rows import Filled, Library, fill
from elf.pipeline.errors import Misconfigured
from elf.pipeline.sharing import NOWHERE
from elf.stages.published import OWT
from elf.stages.tables import TABLES, TOKENS


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def table(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["table", *arguments], env={"COLUMNS": "80"})
    assert getattr(done.exception, "code", done.exit_code) == code, done.output
    return done.output


def told(*arguments: str) -> Any:
    return json.loads(table(*arguments, "--json"))


def put(home: Path, config: str, setting: str, metrics: Mapping[str, Any], *overrides: str) -> str:
    """Scores under the key that the configuration has for that setting."""
    planned = load_request(config, overrides, None).plan[f"evaluate-{setting}"]
    folder = home / "store" / "evaluate" / planned.key
    make_artifact(folder, "evaluate", key=planned.key)
    (folder / "metrics.json").write_text(json.dumps(metrics))
    return planned.key


def line(text: str, start: str) -> list[str]:
    """The words of a row, its label left out."""
    found = next(each for each in text.splitlines() if each.strip().startswith(start))
    return found.strip().removeprefix(start).split()


def test_ours_stand_beside_published_and_what_is_missing_says_what_builds_it(home: Path) -> None:
    put(home, "owt-full", "sde-8", made_up_metrics(70.125, seeds=6, judge="GPT-2 large"))
    said = table("owt-steps")
    assert line(said, "8 steps") == [
        "70.12",
        "±1.75",
        "3.00",
        "±0.01",
        "6",
        "×",
        "64",
        "67.32",
        "±2.25",
        "5.14",
    ]
    assert line(said, "16 steps") == ["—", "—", "33.66", "±1.09", "5.16"]
    assert "elf run owt-full --until evaluate-sde-16" in said
    assert "--until evaluate-sde-8 " not in said
    assert "Of 3 rows of ours, 1 in" in said
    assert "owt-full: sde-8 there; sde-16, sde-32 missing." in said
    assert "nothing in these columns was measured here" in " ".join(said.split())
    assert max(map(len, said.splitlines())) <= 80


def test_scores_are_found_by_key_whatever_run_they_were_made_in(home: Path) -> None:
    key = put(home, "owt-full", "sde-64", made_up_metrics(20.0, judge="GPT-2 large"))
    for name in ("owt-guidance", "frontier", "ablation-conditioning"):
        rows = [row["ours"] for row in told(name)["rows"] if row["ours"]["there"]]
        assert [row["key"] for row in rows] == [key], name


def test_degenerate_rows_are_marked_and_published_ones_are_never_ours(home: Path) -> None:
    faults = ["entropy 4.00 below 5.00 (evaluate.entropy_floor)"]
    put(home, "owt-pd", "pd-1", made_up_metrics(12.0, faults=faults, judge="GPT-2 large"))
    said = table("distillation")
    assert line(said, "1 step")[:2] == ["†", "12.00"]
    assert f"† 1 step: degenerate, {faults[0]}." in " ".join(said.split())
    assert "One seed, so that ± is over its texts: 1 step." in said
    found = told("distillation")
    mine = [row for row in found["rows"] if row["ours"] is not None]
    assert {row["group"] for row in mine} == {"ELF+PD"}
    assert mine[0]["ours"]["degenerate"] == faults
    assert mine[0]["ours"]["scores"]["gen_ppl"]["value"] == 12.0
    assert mine[0]["published"]["gen_ppl"] == {"value": 136.1, "error": None}
    assert len(found["rows"]) == 24


def test_pairs_have_scores_of_their_own(home: Path) -> None:
    metrics = made_up_metrics(None, judge=None)
    score = {"value": 25.96, "se_seed": None, "se_item": 0.31, "interval": None}
    metrics["scores"] |= {"bleu": score}
    put(home, "wmt14-de-en", "ode-64", metrics)
    said = table("wmt14")
    assert line(said, "ELF-B, ODE, 64 steps, w 2, ω 1") == ["26.0", "±0.3", "64", "26.4"]
    assert line(said, "autoregressive") == ["25.2"]
    assert "is built by" not in said
    assert "lower-cased" in said
    assert "every pair of the test split, once a seed, as published" in " ".join(said.lower().split())


def test_another_judge_is_no_comparison(home: Path) -> None:
    other = "evaluate.judge.name=Some judge"
    put(home, "owt-full", "sde-8", made_up_metrics(70.0, judge="Some judge"), other)
    found = told("owt-steps", "--set", other)
    assert not found["judge_as_published"]
    assert "do not compare" in found["differences"]["judge"]
    assert [row["ours"]["there"] for row in found["rows"]] == [True, False, False]
    assert all(need["command"].endswith(f"--set '{other}'") for need in found["needs"])
    assert told("owt-steps")["judge_as_published"]
    assert "no Gen-PPL" in told("owt-steps", "--set", "evaluate.judge=null")["differences"]["judge"]


def test_what_differs_in_the_protocol_is_said(home: Path) -> None:
    found = told("owt-steps")["differences"]
    assert list(found) == ["published", "judge", "case", "split", "seeds", "counting", "tokens"]
    assert found["seeds"] == "1,000 texts of each of 6 seeds, as published."
    assert "45.2 G by documents, 49.9 G by rows times length" in found["tokens"]
    assert "0.1 %" in found["split"]


def test_tokens_of_a_distillation_are_the_teachers_and_those_of_every_round(home: Path) -> None:
    tokens = told("distillation")["differences"]["tokens"]
    assert "by rows times length (owt-pd);" in tokens
    assert "(owt-pd distill-16, owt-pd distill-8," in tokens


def test_a_command_costs_what_those_before_it_left(home: Path) -> None:
    library = Library((), None)
    rows = [row for _, some in fill(TABLES["owt-sizes"], library) for row in some]
    base, *_ = needs = needs_of(rows, library, NOWHERE)
    assert [need.command for need in needs] == [
        "elf run owt-full --until evaluate-sde-64",
        "elf run owt-M",
        "elf run owt-L",
    ]
    alone = needs_of(rows[1:], library, NOWHERE)
    assert alone[0].builds > needs[1].builds, "text, tokens and judge came with the first"
    assert base.seconds.known > 0
    assert [need.rows for need in needs] == [1, 1, 2]


def test_many_missing_settings_are_one_command(home: Path) -> None:
    library = Library((), None)
    rows = [row for _, some in fill(TABLES["frontier"], library) for row in some]
    (need,) = needs_of(rows, library, NOWHERE)
    assert (need.command, need.rows) == ("elf run owt-frontier", 23)


@pytest.mark.slow
def test_every_row_of_every_table_is_one_that_is_shipped_and_fits_a_terminal(home: Path) -> None:
    library = Library((), None)
    shown: dict[str, list[Filled]] = {}
    for name, each in TABLES.items():
        if name != TOKENS:
            shown[name] = [row for _, some in fill(each, library) for row in some]
    assert len(shown["frontier"]) == len({row.found.key for row in shown["frontier"] if row.found})
    for name, rows in shown.items():
        known = TABLES[name].known or {}
        assert known.keys() <= {row.label for row in rows}, name
        assert any(row.published for row in rows), name
    ablations = {path.stem for path in (shipped_folder() / "ablations").glob("*.yaml")}
    assert {name.removeprefix("ablation-") for name in TABLES if name.startswith("ablation-")} == ablations
    beside = {(title, row.label) for each in TABLES.values() for title, row in _static(each)}
    assert {(s.method, p.label) for s in OWT.series for p in s.points} <= beside


def _static(table: Any) -> list[tuple[str, Any]]:
    return [(group.title, row) for group in table.groups for row in group.rows]


def test_tokens_are_counted_both_ways(home: Path) -> None:
    said = table(TOKENS)
    assert line(said, "owt-full")[-4:] == ["~45.2", "G", "~45.2", "G"]
    assert re.search(r"ELF-B, published +45\.2 G +49\.9 G", said)
    assert max(map(len, said.splitlines())) <= 80
    found = told(TOKENS)["ours"]
    assert [each["config"] for each in found].count("owt-full") == 1
    for each in found:
        assert each["rows_times_length"] == each["steps"] * each["batch"] * each["length"]
        assert not each["counted"]


def test_rows_that_are_there_are_counted_and_not_guessed(home: Path) -> None:
    planned = load_request("owt-full", [], None).plan["tokenize"]
    facts = {"rows": 9_746_094, "packed": 9_980_000_000, "tokens": 9_980_000_256}
    make_artifact(home / "store" / "tokenize" / planned.key, "tokenize", key=planned.key, facts=facts)
    (first, *_) = told(TOKENS)["ours"]
    assert first["counted"]
    assert first["rows_times_length"] == 95_177 * 512 * 1024
    assert first["documents"] == pytest.approx(5 * 9_980_000_256, rel=1e-4)


def test_tables_are_listed_one_line_each() -> None:
    said = table()
    assert [each.split()[0] for each in said.splitlines()] == list(TABLES)
    assert max(map(len, said.splitlines())) <= 80
    assert [each["table"] for each in told()] == list(TABLES)


def test_a_table_that_is_none_is_refused_with_the_nearest() -> None:
    assert "Did you mean 'owt-steps'" in table("owt-step", code=2)
    with pytest.raises(Misconfigured, match="has no sampling setting 'sde-8'"):
        fill(TABLES["owt-steps"], Library(["sample=[{name: mine}]"], None))


def test_a_figure_is_drawn_of_ours_and_of_the_published_alone(home: Path) -> None:
    said = table("owt-guidance", "--figure", "out/alone.png")
    assert said.splitlines()[-1] == "Figure: out/alone.png"
    alone = (home / "out/alone.png").read_bytes()
    assert alone.startswith(b"\x89PNG")
    settings = {
        "method": "ode",
        "steps": 64,
        "guidance": 1.0,
        "gamma": 0.0,
        "input_guidance": 1.0,
        "weights": "ema",
    }
    metrics = made_up_metrics(70.0, entropy=5.3, judge="GPT-2 large", settings=settings)
    key = put(home, "owt-frontier", "ode-guidance=1", metrics)
    judged = {"nll": 60.0, "counted": 30, "entropy": 5.3}
    line = {"id": 0, "seed": 0, "empty": False, "judged": judged}
    (home / "store" / "evaluate" / key / "per_text.jsonl").write_text(json.dumps(line) + "\n")
    table("owt-guidance", "--figure", "out/both.png")
    assert (home / "out/both.png").read_bytes() != alone


def test_a_figure_that_cannot_be_drawn_is_refused(home: Path) -> None:
    assert "names no PNG" in table("owt-steps", "--figure", "a.pdf", code=2)
    assert "no Gen-PPL and entropy" in table("xsum", "--figure", "a.png", code=2)
    assert "has no figure" in table(TOKENS, "--figure", "a.png", code=2)
