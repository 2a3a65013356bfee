import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from browser import BROWSER, OVERFLOWING, ask_page
from judging import make_context
from run_folder import RunFolder, key_of, made_up_metrics, watch

from elf.pipeline.forecast import keep_forecast
from elf.stages import report
from elf.stages.config import Report
from elf.stages.experiment import ReportStep

SDE = {
    "method": "sde", "steps": 16, "guidance": 2.0, "gamma": 1.5, "input_guidance": 1.0, "weights": "ema", "count": 64,
}  # fmt: skip
HELDOUT = {"control": "real", "split": "validation", "share": None}
VOID = {"meta", "link", "br", "img", "input", "hr"}
FEW = "64 texts: fewer than 200, the numbers are rough"


class Page(HTMLParser):
    """Reads a page; refuses tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.links += [value for name, value in attrs if name in ("href", "src", "xlink:href") and value]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)
        if {"td", "th"} & set(self.open) and self.rows and self.rows[-1]:
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = RunFolder(tmp_path_factory.mktemp("run") / "store")
    folder.add_texts(
        "sde", ["once <b>upon</b> a time", "", "x" * 700], made_up_metrics(421.7, seeds=6, settings=SDE)
    )
    fault = "entropy 1.20 below 2.65 (held-out text − 0.5)"
    folder.add_texts(
        "flat",
        ["a a a"],
        made_up_metrics(12.1, entropy=1.2, faults=[fault], settings=SDE | {"method": "ode"}),
    )
    folder.add_texts("real", ["held-out words"], made_up_metrics(64.2, warnings=[FEW], settings=HELDOUT))
    folder.add_texts("unigram", ["of the and"], made_up_metrics(5210.8, faults=["Gen-PPL above 300"]))
    for role, seconds in (("train", 3000.0), ("latents", 30.0)):
        path = folder.inputs[role].path
        (path / "aux").mkdir()
        keep_forecast(path, {"seconds": seconds, "bytes": 5_000_000, "machine_measured": "2026-11-30"})
    return folder


def build(folder: RunFolder, out: Path, **changes: Any) -> str:
    section = ReportStep(
        experiment="demo", report=Report.model_validate({"title": "A demo", "note": "Only a demo."} | changes)
    )
    facts = report.run(section, make_context(out, folder.inputs))
    assert facts["page"] == "report.html"
    return (out / "report.html").read_text()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, folder: RunFolder) -> Path:
    out = tmp_path_factory.mktemp("report")
    build(folder, out)
    return out


def test_the_page_says_what_ran_and_what_came_out(built: Path):
    page = Page((built / "report.html").read_text())
    for said in (
        "A demo", "Only a demo.", "8.1 M", "12.5 k × 32 × 384", "Gen-PPL (SmolLM2-135M)",
        "SDE · 16 steps · ω 2 · γ 1.5 · EMA weights", "ODE · 16 steps · ω 2 · EMA weights",
        "degenerate: entropy 1.20 below 2.65", "beyond the guard: Gen-PPL above 300",
        "fewer than 200", "held-out text, no model",
        "Lowest Gen-PPL of a sound setting: 422 (sde)", "real 64, unigram 5,211",
        "1 h 01 m", "8.2 s", "pypi:judge==1.0#judge.gguf", "optim.lr", "0.004",
        "once <b>upon</b> a time", "(empty)", "held-out words", "PPL 403 · entropy 3.10",
    ):  # fmt: skip
        assert said in page.text, said
    assert "degenerate: Gen-PPL" not in page.text, "that is a control"
    for name in (
        "text",
        "judge",
        "tokens",
        "latents",
        "train",
        "sde",
        "scores of sde",
        "real",
        "scores of unigram",
    ):
        assert key_of(name)[:12] in page.text, name
    assert "of the and" not in page.text


def test_what_was_planned_stands_beside_what_came(built: Path):
    page = Page((built / "report.html").read_text())
    rows = {row[0]: row[1:] for row in page.rows}
    assert rows["train"] == ["~50 min", "1 h 01 m", "~5.00 MB", "0 B"]
    assert rows["encode"] == ["~30 s", "1 m 35 s", "~5.00 MB", "0 B"]
    assert rows["all of these"][:2] == ["~50 min", "1 h 03 m"]
    assert "measured on 2026-11-30" in page.text


def test_a_run_that_nobody_planned_has_no_such_table(tmp_path: Path):
    page = Page(build(RunFolder(tmp_path / "store"), tmp_path / "page"))
    assert "Planned and actual" not in page.text
    assert "plan" not in page.ids


def test_gen_ppl_never_stands_without_its_guards(built: Path):
    rows = Page((built / "report.html").read_text()).rows
    head, *body = rows
    assert head == [
        "Texts", "Gen-PPL (SmolLM2-135M)", "Entropy", "Entropy, own ids", "Distinct‑1", "Distinct‑2", "Self‑BLEU",
        "Rep‑4", "Copy‑8", "Empty", "Dupli\xadcates", "n", "Scored tokens",
    ]  # fmt: skip
    body = [row for row in body if len(row) == len(head)]
    assert [row[0][:4] for row in body] == ["sdeS", "flat", "real", "unig"]
    assert body[0][1].startswith("421.7±10.5 SE_seed\n±21.1 SE_item")
    assert body[0][2:] == [
        "3.00±0.01 SE_seed\n±0.03 SE_item", "2.90", "0.410", "0.820", "31.4", "1.2 %", "0.4 %", "2", "3", "6 × 64",
        "11,904",
    ]  # fmt: skip
    assert [row[-2] for row in body[1:]] == ["64< 200"] * 3, "a warning beside the number"
    assert all(len(row) == len(head) and all(cell.strip() for cell in row) for row in body)


EVIL = "</td></svg></style><script>alert('got in')</script><img src=x onerror=alert(1)>"
BRIEF = "<script>a()"


def test_nothing_that_was_read_becomes_part_of_the_page(tmp_path: Path):
    folder = RunFolder(tmp_path / "store")
    folder.add("fetch", "evil", config={"source": f"path:{EVIL}", EVIL: EVIL})
    folder.add("tokenize", "tokens", {"documents": "evil"}, facts={"rows": 12500}, config={"end_token": EVIL})
    scores = made_up_metrics(421.7, settings=SDE, judge=BRIEF, faults=[EVIL], warnings=[EVIL])
    folder.add_texts(BRIEF, [EVIL, "x" * 700 + EVIL], scores, source=EVIL)
    folder.add_texts("real", [EVIL], made_up_metrics(64.2, settings=HELDOUT, judge=BRIEF))
    page = build(folder, tmp_path / "out", title=EVIL, note=EVIL)
    parsed = Page(page)
    assert parsed.text.count("alert('got in')") > 5, "it is there to be read"
    assert BRIEF in parsed.text
    assert "script" not in parsed.tags
    assert not {name for name in parsed.attributes if name.startswith("on")}


def test_the_page_needs_no_network(built: Path):
    text = (built / "report.html").read_text()
    page = Page(text)
    assert not re.search(r"https?:|@import|url\((?!#)|<script", text)
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)


def test_figures_lie_beside_the_page_and_in_it(built: Path):
    text = (built / "report.html").read_text()
    names = {path.name for path in built.glob("*.png")}
    curves = {f"curve-{part}.png" for part in ("loss", "ce", "l2")}
    assert names == {*curves, "levels-ce.png", "levels-l2.png", "frontier-1.png"}
    assert all((built / name).read_bytes().startswith(b"\x89PNG") for name in names)
    assert text.count("<figure") == 6
    assert "Gen-PPL (SmolLM2-135M) over entropy" in text
    assert "#0102" not in text


def test_the_same_run_gives_the_same_page(tmp_path: Path, folder: RunFolder, built: Path):
    assert build(folder, tmp_path / "again") == (built / "report.html").read_text()


def test_pairs_are_shown_beside_their_sources(tmp_path: Path):
    folder = RunFolder(tmp_path / "store", steps=0)
    folder.add_texts("ode", ["the answer"], made_up_metrics(40.0, settings=SDE), source="the question")
    assert "the answer source the question" in Page(build(folder, tmp_path / "out")).text


def test_without_a_judge_the_page_says_so(tmp_path: Path):
    folder = RunFolder(tmp_path / "store", steps=0)
    folder.add_texts("sde", ["words"], made_up_metrics(None, judge=None, settings=SDE))
    page = Page(build(folder, tmp_path / "out"))
    assert "this run names no judge" in page.text
    assert "Gen-PPL" not in " ".join(page.rows[0])


def test_two_judges_have_two_tables(tmp_path: Path):
    folder = RunFolder(tmp_path / "store", steps=0)
    folder.add_texts("sde", ["words"], made_up_metrics(40.0, settings=SDE))
    folder.add_texts("other", ["words"], made_up_metrics(30.0, judge="GPT-2", settings=SDE))
    text = build(folder, tmp_path / "out")
    assert text.count('<table class="scores">') == 2
    assert "Gen-PPL (GPT-2)" in text


def test_a_run_without_samples_still_has_a_page(tmp_path: Path):
    page = Page(build(RunFolder(tmp_path / "store"), tmp_path / "out", title=None, note=None))
    assert "demo" in page.text
    assert "Training" in page.text


def test_as_many_samples_as_asked_for(tmp_path: Path):
    folder = RunFolder(tmp_path / "store", steps=0)
    folder.add_texts("sde", ["one", "two"], made_up_metrics(None, judge=None, settings=SDE))
    page = Page(build(folder, tmp_path / "out", samples=1))
    assert "seed 0 · 0" in page.text
    assert "seed 0 · 1" not in page.text
    assert "Training" not in page.text


def test_a_run_that_was_watched_is_shown_as_it_learned(tmp_path: Path):
    folder = RunFolder(tmp_path / "store")
    watch(folder.train.path, steps=tuple(range(10, 101, 10)), texts=5)
    page = Page(build(folder, tmp_path / "out"))
    assert "1,800 tokens/s, MFU 31 %; 2.0 % of the time waiting for rows" in page.text
    assert "While it learned" in page.text
    shown = re.findall(r"text (\d) at (\d+)", page.text)
    assert shown == [(str(number), str(step)) for number in range(3) for step in (10, 30, 50, 60, 80, 100)]


def test_a_run_that_nobody_watched_says_nothing_of_it(tmp_path: Path):
    page = Page(build(RunFolder(tmp_path / "store"), tmp_path / "out"))
    assert "MFU" not in page.text
    assert "While it learned" not in page.text


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_overflows_in_a_browser(tmp_path: Path, built: Path, width: int):
    page = (built / "report.html").read_text()
    assert ask_page(tmp_path, page, width, OVERFLOWING) == f"fits {width}"
