"""Inputs that a step makes for itself, or only looks at: not built, known all the same."""

import json
import shutil
from collections.abc import Mapping

import pytest
from toy_stages import BUILT, COUNT, WORDS, Count, Recorder, Words

from elf.cache.manifest import JSON
from elf.cache.store import Store
from elf.pipeline.descriptions import read_description
from elf.pipeline.errors import Failed
from elf.pipeline.explain import explain
from elf.pipeline.plan import Plan, Step, Tie
from elf.pipeline.progress import LineProgress
from elf.pipeline.runner import build_step, materialise, needed
from elf.pipeline.section import Section
from elf.pipeline.stage import StageContext, StageSpec

USERS: list[list[str]] = []


class Total(Section):
    times: int = 1


def make_total(section: Total, context: StageContext) -> Mapping[str, JSON]:
    """Twice the count: of the artifact, or counted here from what it would be made of."""
    BUILT.append("total")
    if "count" in context.unbuilt:
        unbuilt = context.unbuilt["count"]
        assert isinstance(unbuilt.section, Count)
        words = json.loads((unbuilt.inputs["words"].path / "words.json").read_text())
        count = len(words) * unbuilt.section.scale
        store = Store(context.out.parent.parent.parent)
        USERS.append([mark for holder in store.users_of("words", words_key(context)) for mark in holder.uses])
    else:
        count = json.loads((context.inputs["count"].path / "count.json").read_text())
    return {"total": 2 * count * section.times, "given": sorted(context.inputs)}


def words_key(context: StageContext):
    return context.unbuilt["count"].manifest.inputs["words"]


TOTAL = StageSpec("total", Total, "test_ties:make_total", ("count",), version=1)
GLANCED = StageSpec("total", Total, "toy_stages:make_nothing", ("count",), version=1)


@pytest.fixture(autouse=True)
def _findable(monkeypatch: pytest.MonkeyPatch) -> None:
    USERS.clear()
    monkeypatch.setattr(StageSpec, "resolve", lambda self: make_total if self is TOTAL else resolve(self))


resolve = StageSpec.resolve


def plan(tie: Tie, *, scale: float = 1.0, spec: StageSpec[Total] = TOTAL, also: bool = False) -> Plan:
    """words → count → total; ``also``: another step that needs the count itself."""
    steps = [
        Step("words", WORDS, Words(), prefix="words"),
        Step("count", COUNT, Count(scale=scale), {"words": "words"}, prefix="count"),
        Step("total", spec, Total(), {"count": "count"}, prefix="total", ties={"count": tie}),
    ]
    if also:
        steps.append(Step("other", TOTAL, Total(times=2), {"count": "count"}, prefix="other"))
    return Plan(steps)


def test_a_tie_changes_no_key() -> None:
    keys = {tuple(each.key for each in plan(tie)) for tie in Tie}
    assert len(keys) == 1


def test_what_a_step_makes_itself_is_not_built(store: Store, watch: Recorder, quiet: LineProgress) -> None:
    whole = plan(Tie.INLINE, scale=3.0)
    assert whole.spared() == {"count"}
    done = materialise(whole, store, watch=watch, progress=quiet)
    assert BUILT == ["words", "total"]
    assert done.keys() == {"words", "total"}
    assert done["total"].artifact.manifest.facts == {"total": 18.0, "given": []}
    assert done["total"].artifact.manifest.inputs == {"count": whole["count"].key}
    assert needed(whole, store) == ("words", "total")
    assert [sorted(uses) for uses in USERS] == [
        sorted([f"words/{whole['words'].key}", f"count/{whole['count'].key}"])
    ], "nobody replaces what is read meanwhile"


def test_built_or_made_inside_it_is_one_artifact(store: Store, watch: Recorder, quiet: LineProgress) -> None:
    materialise(plan(Tie.INLINE), store, watch=watch, progress=quiet)
    materialise(plan(Tie.BUILT), store, watch=watch, progress=quiet)
    assert BUILT == ["words", "total"]


def test_who_asks_for_it_gets_it(store: Store, watch: Recorder, quiet: LineProgress) -> None:
    whole = plan(Tie.INLINE)
    materialise(whole, store, watch=watch, progress=quiet, until="count")
    assert BUILT == ["words", "count"]
    done = materialise(whole, store, watch=watch, progress=quiet, force=frozenset({"count"}))
    assert BUILT == ["words", "count", "count", "total"]
    assert done["total"].artifact.manifest.facts["given"] == ["count"], "it is there, so it is given too"
    assert read_description(done["total"].artifact.path, "count") is None


def test_a_step_that_needs_it_has_it_built(store: Store, watch: Recorder, quiet: LineProgress) -> None:
    whole = plan(Tie.INLINE, also=True)
    assert whole.spared() == frozenset()
    materialise(whole, store, watch=watch, progress=quiet)
    assert BUILT == ["words", "count", "total", "total"]


def test_what_is_only_looked_at_is_never_built_for_it(
    store: Store, watch: Recorder, quiet: LineProgress
) -> None:
    whole = plan(Tie.GLANCE, spec=GLANCED)
    assert materialise(whole, store, watch=watch, progress=quiet).keys() == {"total"}
    assert BUILT == []
    materialise(whole, store, watch=watch, progress=quiet, until="count")
    shutil.rmtree(store.path("total", whole["total"].key))
    assert materialise(whole, store, watch=watch, progress=quiet).keys() == {"words", "count", "total"}


def test_only_names_what_the_missing_input_would_be_made_of(
    store: Store, watch: Recorder, quiet: LineProgress
) -> None:
    with pytest.raises(Failed, match=r"'total' needs 'words' \(words .*\) as its count's words"):
        build_step(plan(Tie.INLINE), "total", store, watch=watch, progress=quiet)
    assert BUILT == []


def test_why_says_that_it_is_skipped_and_what_differs_in_it(
    store: Store, watch: Recorder, quiet: LineProgress
) -> None:
    materialise(plan(Tie.INLINE), store, watch=watch, progress=quiet)
    changed = plan(Tie.INLINE, scale=2.0)
    (line,) = explain(changed, "count", store).lines()
    assert "  skip: " in line
    title, *causes = explain(changed, "total", store).lines()
    assert "build: nearest is" in title
    assert causes == ["  count.scale: 1.0 → 2.0  (count → total)"]


def test_a_description_that_cannot_be_read_is_none(
    store: Store, watch: Recorder, quiet: LineProgress
) -> None:
    made = materialise(plan(Tie.INLINE), store, watch=watch, progress=quiet)["total"].artifact
    described = read_description(made.path, "count")
    assert described is not None
    assert (described.stage, described.config["scale"], described.files) == ("count", 1.0, {})
    (made.path / "aux" / "unbuilt" / "count.json").write_text("{")
    assert read_description(made.path, "count") is None
