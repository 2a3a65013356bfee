"""A whole experiment through the command line: built once, reused, explained."""

import json
import re
from pathlib import Path

import pytest
from commands import call, half_made


def planned(folder: Path, *arguments: str) -> dict[str, bool]:
    """Whether each step is a hit."""
    steps = json.loads(call(folder, "plan", "tiny", "--json", *arguments))["steps"]
    return {step["step"]: step["state"] == "hit" for step in steps}


def test_it_ends_with_a_report_of_everything(whole: Path) -> None:
    page = (whole / "runs/tiny/report.html").read_text()
    assert "<svg" in page
    for row in ("ode", "sde", "real", "replaced", "unigram"):
        assert row in page
    assert not half_made(whole / "store")
    assert re.search(r"^Some .* on this machine", (whole / "said.txt").read_text(), re.MULTILINE)


def test_page_and_terminal_agree_on_names_and_time(whole: Path) -> None:
    page = (whole / "runs/tiny/report.html").read_text()
    for step in ("fetch-train", "tokenize-validation", "encode-validation", "pretrain"):
        assert f"<span>{step}</span>" in page
    (told,) = re.findall(
        r"The stages behind the report took (.*), each in the run that made it", call(whole, "run", "tiny")
    )
    assert f"<dt>time of the stages behind this page</dt><dd>{told}</dd>" in page


def test_a_second_run_reuses_all_and_says_so(whole: Path) -> None:
    said = call(whole, "run", "tiny")
    assert "built" not in said.replace("Nothing to build", "")
    assert "all 19 steps reused" in said
    assert "on this machine" not in said


@pytest.mark.parametrize(
    ("setting", "rebuilt"),
    [
        ("train.latents.std=0.3", "train"),
        ("train.model.hidden=32", "train"),
        ("train.seed=1", "train"),
        ("compute.encode.batch_tokens=64", None),
        ("encode.layer=0", "encode"),
        ("tokenize.length=16", "tokenize"),
        ("sample.0.steps=5", "sample-ode"),
    ],
)
def test_a_change_rebuilds_nothing_before_it(whole: Path, setting: str, rebuilt: str | None) -> None:
    hits = planned(whole, "--set", setting)
    order = list(hits)
    before = order if rebuilt is None else order[: order.index(rebuilt)]
    assert all(hits[name] for name in before)
    if rebuilt is not None:
        assert not hits[rebuilt]
        assert not hits["report"]


@pytest.mark.parametrize(
    ("step", "setting", "named"),
    [
        ("train", "train.latents.std=0.3", "train.latents.std"),
        ("train", "encode.dtype=float32", "encode.dtype"),
        ("tokenize", "data.train.text=body", "data.train.text"),
        ("sample-ode", "sample.0.guidance=2.5", "sample.0.guidance"),
    ],
)
def test_why_names_the_setting(whole: Path, step: str, setting: str, named: str) -> None:
    assert named in call(whole, "why", "tiny", step, "--set", setting)


def test_why_takes_the_name_of_a_run_too(whole: Path) -> None:
    call(whole, "run", "tiny", "--until", "tokenize", "--set", "name=mine", "tokenize.length=16")
    said = call(whole, "why", "mine", "tokenize", "--set", "tokenize.length=12")
    assert "tokenize.length: 16 → 12" in said, said


def test_texts_for_a_person_are_those_that_were_scored(whole: Path) -> None:
    record = (whole / "runs/tiny/sample-ode/samples.jsonl").read_text().splitlines()
    wanted = [json.loads(line)["text"] for line in record[:3]]
    assert json.loads(call(whole, "sample", "tiny", "--n", "3", "--json"))["texts"] == wanted
    said = call(whole, "sample", "tiny", "--n", "1", "--setting", "sde")
    assert said.startswith("0  ")


def test_two_rows_are_compared_item_by_item(whole: Path) -> None:
    said = call(whole, "compare", "tiny/real", "tiny/replaced")
    assert all(len(line) <= 80 for line in said.splitlines())
    assert "Paired bootstrap of 16 items.\nFewer than 200 items" in said
    compared = json.loads(call(whole, "compare", "tiny/real", "tiny/replaced", "--json"))
    assert compared["notes"] == []
    told = compared["scores"]["entropy_ids"]
    assert told["difference"] == pytest.approx(told["second"] - told["first"])
    assert told["interval"][0] <= told["difference"] <= told["interval"][1]
