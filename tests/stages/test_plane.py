"""What stands under a score table on the page: Gen-PPL at one entropy, and published numbers."""

import json
import math
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from browser import BROWSER, OVERFLOWING, ask_page
from judging import make_context
from run_folder import RunFolder, made_up_metrics

from elf.stages import report
from elf.stages.config import Report
from elf.stages.experiment import ReportStep

SDE = {
    "method": "sde", "steps": 16, "guidance": 2.0, "gamma": 1.5, "input_guidance": 1.0, "weights": "ema", "count": 64,
}  # fmt: skip
HELDOUT = {"control": "real", "split": "validation", "share": None}


def write(folder: RunFolder, out: Path, **settings: Any) -> str:
    section = ReportStep(experiment="demo", report=Report.model_validate({"samples": 1, **settings}))
    report.run(section, make_context(out, folder.inputs))
    return (out / "report.html").read_text()


def page_of(folder: RunFolder, out: Path, **settings: Any) -> str:
    """The words of the page."""
    text = re.sub(r"<(style|svg)>?.*?</\1>", "", write(folder, out, **settings), flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", text))


def add(folder: RunFolder, name: str, ppl: float, entropy: float, settings: Any, judge: str) -> None:
    """Texts that all have this perplexity and entropy."""
    folder.add_texts(
        name, ["a text"] * 4, made_up_metrics(ppl, entropy=entropy, settings=settings, judge=judge)
    )
    judged = {"nll": 30 * math.log(ppl), "counted": 30, "entropy": entropy}
    lines = [json.dumps({"id": i, "seed": 0, "empty": False, "judged": judged}) + "\n" for i in range(4)]
    (folder.inputs[f"scores/{name}"].path / "per_text.jsonl").write_text("".join(lines))


def swept(root: Path, judge: str) -> RunFolder:
    folder = RunFolder(root, steps=0)
    for guidance, ppl, entropy in ((1.0, 80.0, 5.4), (2.0, 20.0, 5.2), (3.0, 10.0, 5.0)):
        add(folder, f"sde-guidance={guidance:g}", ppl, entropy, SDE | {"guidance": guidance}, judge)
    add(folder, "ode", 90.0, 5.5, SDE | {"method": "ode"}, judge)
    add(folder, "real", 24.0, 5.3, HELDOUT, judge)
    add(folder, "unigram", 9000.0, 6.0, None, judge)
    return folder


def test_swept_settings_are_read_off_at_the_entropy_of_real_text(tmp_path: Path):
    said = page_of(swept(tmp_path / "store", "SmolLM2-135M"), tmp_path / "out")
    assert "At 5.30 nats of real text" in said
    row = "SDE · 16 steps · γ 1.5 5.30 40.0 40.0 to 40.0 ω 2 (20.0 at 5.20) and ω 1 (80.0 at 5.40)"
    assert row in said
    assert "Above the figure: unigram (9,000 at 6.00)" in said
    assert "Published" not in said
    assert "published" not in said


def test_published_numbers_are_drawn_under_their_own_judge_and_named(tmp_path: Path):
    said = page_of(swept(tmp_path / "store", "GPT-2 large"), tmp_path / "out", published="owt")
    assert "Hollow and dashed: published by others, not measured here." in said
    assert "OpenWebText, as published (arXiv 2605.10938)" in said
    assert "ELF-B, SDE, ω 3 8 steps 67.32 ±2.25 5.14" in said
    assert "ω 4 21.37 –" in said
    assert "MDLM+SDTT 1 step 1,260.6 5.26" in said
    assert "do not compare" not in said


def test_under_another_judge_they_stand_apart_and_another_entropy_is_not_extrapolated_to(tmp_path: Path):
    folder = swept(tmp_path / "store", "SmolLM2-135M")
    said = page_of(folder, tmp_path / "out", published="owt", entropy=4.5)
    assert "Hollow and dashed" not in said
    assert "No row above was judged by GPT-2 large over 1,024 tokens: these numbers do not compare" in said
    assert "At 4.50 nats as asked for" in said
    assert "SDE · 16 steps · γ 1.5 4.50 – – outside the measured range, 5.00 to 5.40 nats" in said


def test_published_scores_of_pairs(tmp_path: Path):
    folder = RunFolder(tmp_path / "store", steps=0)
    folder.add_texts("ode", ["a text"], made_up_metrics(None, judge=None, settings=SDE))
    said = page_of(folder, tmp_path / "out", published="xsum")
    assert "ELF-B, ODE, 64 steps, w 2, ω 1 36.0 12.2 27.8" in said
    assert "No row above" not in said


OVERLAPPING = """(() => {
  const found = [...document.querySelectorAll(".plots.one svg text")];
  const words = found.map(e => [e.textContent, e.getBoundingClientRect()]);
  const on = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  const pairs = words.flatMap(([a, at], i) =>
    words.slice(i + 1).filter(([, other]) => on(at, other)).map(([b]) => a + "|" + b));
  return words.length + " words, overlapping: " + pairs.join(", ");
})()"""


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_a_sweep_of_twenty_four_is_legible_in_a_browser(tmp_path: Path):
    folder = RunFolder(tmp_path / "store", steps=0)
    for steps, gamma, guidance in product((8, 16, 32, 64), (0.5, 1.5), (1.0, 2.0, 3.0)):
        settings = SDE | {"steps": steps, "gamma": gamma, "guidance": guidance}
        ppl, entropy = (
            25 + (200 + 600 / steps - 30 * gamma) / guidance**2,
            5.5 - 0.15 * guidance + steps / 1000,
        )
        add(
            folder,
            f"sde-steps={steps}-guidance={guidance:g}-gamma={gamma:g}",
            ppl,
            entropy,
            settings,
            "GPT-2 large",
        )
    add(folder, "real", 24.0, 5.2, HELDOUT, "GPT-2 large")
    page = write(folder, tmp_path / "out", published="owt").replace("<details", "<details open")
    for width in (1280, 390):
        assert ask_page(tmp_path, page, width, OVERFLOWING) == f"fits {width}"
        count, _, pairs = ask_page(tmp_path, page, width, OVERLAPPING).partition(" words, overlapping: ")
        assert (int(count) > 45, pairs) == (True, "")
