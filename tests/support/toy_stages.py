"""A toy house of stages, defined here so that the engine is tested without any of the product's stages."""

import json
from collections.abc import Mapping
from typing import Annotated

from elf.cache.lease import Holder
from elf.cache.manifest import JSON
from elf.cache.store import Artifact
from elf.pipeline.errors import Failed
from elf.pipeline.plan import Plan, Planned, Step
from elf.pipeline.runner import Outcome
from elf.pipeline.section import RUNTIME, Section
from elf.pipeline.stage import StageContext, StageSpec


class Words(Section):
    text: str = "one two three"
    limit: int | None = None
    workers: Annotated[int, RUNTIME] = 1


class Count(Section):
    scale: float = 1.0
    fail: bool = False


BUILT: list[str] = []


def make_words(section: Words, context: StageContext) -> Mapping[str, JSON]:
    BUILT.append("words")
    words = section.text.split()[: section.limit]
    (context.out / "words.json").write_text(json.dumps(words))
    return {"words": len(words)}


def make_count(section: Count, context: StageContext) -> Mapping[str, JSON]:
    BUILT.append("count")
    if section.fail:
        raise Failed("The count failed because it was told to.")
    words = json.loads((context.inputs["words"].path / "words.json").read_text())
    (context.out / "count.json").write_text(json.dumps(len(words) * section.scale))
    with context.progress.bar("counting", len(words), unit="words") as bar:
        for _ in words:
            bar.advance()
    return {"count": len(words) * section.scale}


def make_nothing(section: Section, context: StageContext) -> Mapping[str, JSON]:
    return {}


HERE = "toy_stages"
WORDS = StageSpec("words", Words, f"{HERE}:make_words", (), version=1, neutral={"limit": None})
COUNT = StageSpec("count", Count, f"{HERE}:make_count", ("words",), version=1)


class Recorder:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_hit(self, planned: Planned, artifact: Artifact) -> None:
        self.events.append(f"hit {planned.step.name}")

    def on_wait(self, planned: Planned, holder: Holder | None) -> None:
        self.events.append(f"wait {planned.step.name}")

    def on_start(self, planned: Planned) -> None:
        self.events.append(f"start {planned.step.name}")

    def on_pull(self, planned: Planned) -> None:
        self.events.append(f"pull {planned.step.name}")

    def on_done(self, planned: Planned, outcome: Outcome) -> None:
        self.events.append(f"done {planned.step.name}")


def toy_plan(words: Words | None = None, count: Count | None = None) -> Plan:
    return Plan(
        [
            Step("words", WORDS, words or Words(), prefix="words"),
            Step("count", COUNT, count or Count(), {"words": "words"}, prefix="count"),
        ]
    )
