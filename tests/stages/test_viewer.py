"""Trajectories on the report's page: what it holds, that nothing of a text becomes part of it, and its slider."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import BROWSER, OVERFLOWING, ask_page
from judging import make_context
from run_folder import RunFolder, made_up_metrics

from elf.stages import report
from elf.stages.config import Report
from elf.stages.experiment import ReportStep
from elf.stages.trajectory import Followed, Reading, Trajectory, write_trajectory

SETTINGS = {
    "method": "ode", "steps": 4, "guidance": 2.0, "gamma": 0.0, "input_guidance": 1.0, "weights": "ema", "count": 64,
}  # fmt: skip
PIECES = {1: " </s>", 3: " once", 4: " upon", 5: " a", 6: " time", 7: "s"}
READINGS = tuple(Reading(step, step / 4, step / 4) for step in range(5))
EVIL = " </script><script>alert('got in')</script><!-- <img src=x onerror=alert(1)> \u2028 ' \" & <b>"


def followed(number: int, *readings: list[int], differing: int = 0) -> Followed:
    distances = np.linspace(1.0, 0.0, len(readings))
    return Followed(number, np.array(readings), distances, 2 * distances, differing)


FIRST = followed(0, [5, 5, 5, 5], [3, 5, 5, 7], [3, 4, 5, 1], [3, 4, 5, 6], [3, 4, 5, 6])
SECOND = followed(1, [3, 1], [3, 1], [3, 1], [3, 1], [5, 1])
TWO = Trajectory(0, 4, READINGS, (FIRST, SECOND), PIECES)


class Parts(HTMLParser):
    """Tags, attributes and scripts as a browser would find them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.scripts: list[tuple[str | None, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "script":
            self.scripts.append((dict(attrs).get("type"), ""))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            kind, text = self.scripts.pop()
            self.scripts.append((kind, text + data))


def build(
    folder: Path, trajectory: Trajectory | None, *, name: str = "ode", source: str | None = None
) -> str:
    run = RunFolder(folder / "store", steps=0)
    texts = ["once upon a time", "a"]
    run.add_texts(name, texts, made_up_metrics(None, judge=None, settings=SETTINGS), source=source)
    if trajectory is not None:
        write_trajectory(run.inputs[f"samples/{name}"].path / "trajectory.json", trajectory)
    section = ReportStep(experiment="demo", report=Report())
    report.run(section, make_context(folder / "out", run.inputs))
    return (folder / "out" / "report.html").read_text()


def data_of(page: str) -> Any:
    [(_, data), (kind, _)] = Parts(page).scripts
    assert kind is None
    return json.loads(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("followed")


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    """Of two followed texts, both of one source."""
    return build(folder, TWO, source="the question")


def test_the_page_holds_every_reading(folder: Path, page: str) -> None:
    data = data_of(page)
    first = data["texts"][0]
    read = [[data["pieces"][piece] for piece in reading] for reading in first["readings"]]
    assert read[1] == [" once", " a", " a", "s"]
    assert read[-1] == [" once", " upon", " a", " time"]
    assert first["settledFrom"] == [1, 2, 0, 3]
    assert first["said"][1] == "50\xa0% settled, x̂\xa00.75 and z\xa01.50 from the end"
    assert data["texts"][1]["said"][3].startswith("50\xa0% settled")
    assert data["times"] == [f"t\xa0{step / 4:.2f}, {step} of 4 steps done" for step in range(5)]
    assert {path.name for path in (folder / "out").glob("*.png")} == {"settled-ode.png", "distance-ode.png"}
    assert page.count("<figure") == 2
    assert "other than its sample" not in page


def test_without_its_script_the_page_shows_how_texts_end(page: str) -> None:
    bare = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert '<p class="tokens">once upon a time</p>' in bare
    assert '<p class="tokens">a &lt;/s&gt;</p>' in bare
    assert "seed 0 · 1, at the end" in bare
    assert bare.count("the question") == 4, "beside each text, in the samples and here"
    assert '<div class="controls" hidden>' in bare


def test_a_run_that_follows_nothing_has_no_viewer_and_no_script(tmp_path: Path) -> None:
    page = build(tmp_path, None)
    assert "script" not in Parts(page).tags
    assert "rajector" not in page


def test_nothing_of_a_text_becomes_part_of_the_page(tmp_path: Path) -> None:
    other = followed(1, *SECOND.ids_TN.tolist(), differing=2)
    evil = Trajectory(0, 4, READINGS, (FIRST, other), PIECES | {5: EVIL})
    page = build(tmp_path, evil, name="<script>a()", source=EVIL)
    parts = Parts(page)
    assert parts.tags.count("script") == 2
    assert "img" not in parts.tags
    assert not {attribute for attribute in parts.attributes if attribute.startswith("on")}
    assert EVIL in data_of(page)["pieces"]
    [data] = re.findall(r'<script type="application/json">(.*?)</script>', page, flags=re.DOTALL)
    assert not re.search("[<>&\u2028]", data)
    assert "text 1 ends with 2 tokens other than its sample" in page


# What a person does: looks, moves the slider by keyboard focus and value, takes the other text, lets it play.
WALK = """await (async () => {
  const find = what => document.querySelector(".viewer " + what), slider = find("input"), seen = [], rings = [];
  const look = () => {
    const shown = [...document.querySelectorAll(".reading")].filter(each => !each.hidden);
    const tokens = shown[0].querySelector(".tokens");
    seen.push([shown.length, tokens.textContent, tokens.querySelectorAll(".open").length, find(".now").textContent,
      slider.getAttribute("aria-valuetext") === find(".now").textContent]);
    rings.push([...document.querySelectorAll(".viewer .here")].map(ring => Number(ring.getAttribute("cx"))));
  };
  look();
  slider.focus();
  slider.stepDown(3);
  slider.dispatchEvent(new Event("input"));
  look();
  find("select").value = 1;
  find("select").dispatchEvent(new Event("change"));
  look();
  find("button").click();
  for (let waited = 0; find("button").textContent !== "Play" && waited < 100; waited++)
    await new Promise(go => setTimeout(go, 100));
  look();
  return JSON.stringify({seen, rings, focused: document.activeElement === slider, labels: slider.labels.length,
    wide: OVERFLOWING});
})()""".replace("OVERFLOWING", OVERFLOWING)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
@pytest.mark.parametrize("width", [1280, 390])
def test_the_slider_in_a_browser(tmp_path: Path, page: str, width: int) -> None:
    told = json.loads(ask_page(tmp_path, page, width, WALK))
    said = "t\xa0{}, {} of 4 steps done: {}\xa0% settled, x̂\xa0{} and z\xa0{} from the end"
    assert told["seen"] == [
        [1, "once upon a time", 0, said.format("1.00", 4, 100, "0.00", "0.00"), True],
        [1, "once a as", 2, said.format("0.25", 1, 50, "0.75", "1.50"), True],
        [1, "once </s>", 1, said.format("0.25", 1, 50, "0.75", "1.50"), True],
        [1, "a </s>", 0, said.format("1.00", 4, 100, "0.00", "0.00"), True],
    ]
    assert [len(rings) for rings in told["rings"]] == [3] * 4, "one a curve"
    end, second = told["rings"][:2]
    assert told["rings"][3] == end
    assert all(later - earlier > 100 for earlier, later in zip(second, end, strict=True))
    assert told["focused"]
    assert told["labels"] == 1
    assert told["wide"] == f"fits {width}"


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_long_and_hostile_texts_stay_on_a_phone(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(3, 8, (5, 1024)).tolist()
    long = Trajectory(0, 4, READINGS, (followed(0, *ids),), PIECES | {5: EVIL, 6: "x" * 300})
    assert ask_page(tmp_path, build(tmp_path, long, source=EVIL * 99), 390, OVERFLOWING) == "fits 390"
