"""The runner: reuse, selection, force, failure, races."""

import shutil
import threading
from pathlib import Path

import pytest
from toy_stages import BUILT, Count, Recorder, Words, toy_plan

from elf.cache.errors import Damaged
from elf.cache.store import Store
from elf.pipeline.errors import Failed
from elf.pipeline.plan import Plan
from elf.pipeline.progress import LineProgress
from elf.pipeline.runner import Outcome, materialise, needed


def run(
    plan: Plan, store: Store, watch: Recorder, quiet: LineProgress, **asked: object
) -> dict[str, Outcome]:
    return materialise(plan, store, watch=watch, progress=quiet, **asked)  # type: ignore[arg-type]


def test_everything_is_built_once_and_then_reused(store: Store, watch: Recorder, quiet: LineProgress) -> None:
    first = run(toy_plan(), store, watch, quiet)
    assert BUILT == ["words", "count"]
    assert first["count"].artifact.manifest.facts == {"count": 3.0}
    second = run(toy_plan(), store, watch, quiet)
    assert BUILT == ["words", "count"]
    assert all(outcome.reused for outcome in second.values())
    assert second.keys() == {"words", "count"}


def test_a_change_rebuilds_nothing_before_it(store: Store, watch: Recorder, quiet: LineProgress) -> None:
    run(toy_plan(), store, watch, quiet)
    run(toy_plan(count=Count(scale=3)), store, watch, quiet)
    assert BUILT == ["words", "count", "count"]


def test_what_nobody_needs_is_not_built_again(store: Store, watch: Recorder, quiet: LineProgress) -> None:
    plan = toy_plan()
    run(plan, store, watch, quiet)
    shutil.rmtree(store.path("words", plan["words"].key))
    assert needed(plan, store) == ("count",)


def test_until_stops_there(store: Store, watch: Recorder, quiet: LineProgress) -> None:
    assert run(toy_plan(), store, watch, quiet, until="words").keys() == {"words"}


def test_only_never_builds_upstream(store: Store, watch: Recorder, quiet: LineProgress) -> None:
    with pytest.raises(Failed, match="'count' needs 'words'"):
        run(toy_plan(), store, watch, quiet, only="count")
    assert BUILT == []
    run(toy_plan(), store, watch, quiet, only="words")
    run(toy_plan(), store, watch, quiet, only="count")
    assert BUILT == ["words", "count"]


def test_force_rebuilds_that_stage_alone_and_compares(
    store: Store, watch: Recorder, quiet: LineProgress
) -> None:
    run(toy_plan(), store, watch, quiet)
    again = run(toy_plan(), store, watch, quiet, force=frozenset({"words"}))
    assert BUILT == ["words", "count", "words"]
    assert again["words"].compared == "identical"
    assert again["count"].reused


def test_force_says_when_the_bytes_differ(store: Store, watch: Recorder, quiet: LineProgress) -> None:
    plan = toy_plan()
    run(plan, store, watch, quiet)
    payload = store.path("words", plan["words"].key) / "words.json"
    payload.chmod(0o644)
    old = store.find("words", plan["words"].key)
    assert old is not None
    noisy = toy_plan(Words())
    monkey = pytest.MonkeyPatch()
    monkey.setattr(
        "toy_stages.make_words", lambda section, context: (context.out / "w").write_text("x") and {}
    )
    again = run(noisy, store, watch, quiet, force=frozenset({"words"}))
    monkey.undo()
    assert again["words"].compared == "differs"
    new = store.find("words", plan["words"].key)
    assert new is not None
    assert new.manifest.content != old.manifest.content


def test_a_damaged_artifact_is_refused_and_rebuilt_by_force(
    store: Store, watch: Recorder, quiet: LineProgress
) -> None:
    plan = toy_plan()
    run(plan, store, watch, quiet)
    manifest = store.path("words", plan["words"].key) / "manifest.json"
    manifest.chmod(0o644)
    manifest.write_text("{")
    with pytest.raises(Damaged, match="stage words with --force"):
        run(plan, store, watch, quiet)
    again = run(plan, store, watch, quiet, force=frozenset({"words"}))
    assert again["words"].compared is None
    assert store.find("words", plan["words"].key) is not None


def test_an_input_with_a_missing_file_is_refused_before_it_is_used(
    store: Store, watch: Recorder, quiet: LineProgress
) -> None:
    plan = toy_plan()
    run(plan, store, watch, quiet)
    (store.path("words", plan["words"].key) / "words.json").unlink()
    with pytest.raises(Damaged, match=r"words\.json is missing"):
        run(toy_plan(count=Count(scale=9)), store, watch, quiet)


def test_a_failure_leaves_no_finished_name_and_keeps_its_log(
    store: Store, watch: Recorder, quiet: LineProgress
) -> None:
    plan = toy_plan(count=Count(fail=True))
    with pytest.raises(Failed, match="told to"):
        run(plan, store, watch, quiet)
    assert store.find("count", plan["count"].key) is None
    logs = list(store.root.glob(f".building/count/{plan['count'].key}/aux/log.txt"))
    assert "told to" in logs[0].read_text()


def test_two_runs_at_once_build_each_step_once(store: Store, quiet: LineProgress) -> None:
    watches = [Recorder(), Recorder()]
    threads = [
        threading.Thread(target=run, args=(toy_plan(), Store(store.root), watch, quiet)) for watch in watches
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(BUILT) == ["count", "words"]


def test_the_manifest_tells_where_it_came_from(
    store: Store, watch: Recorder, quiet: LineProgress, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["elf", "run", "--set", "hub_token=abc", "https://user:pw@mirror/x"])
    outcome = run(toy_plan(), store, watch, quiet)["count"]
    told = outcome.artifact.manifest
    assert told.provenance.argv == ("elf", "run", "--set", "hub_token=***", "https://***@mirror/x")
    assert told.config["scale"] == 1.0
    assert told.inputs == {"words": outcome.planned.input_keys["words"]}
