"""Runs are links into the store, and the store knows of them."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from stored import DAY, set_age
from toy_stages import Count, Recorder, Words, toy_plan

from elf.cache.collecting import survey
from elf.cache.collector import collecting
from elf.cache.roots import known_folders
from elf.cache.store import Store
from elf.pipeline.errors import Failed
from elf.pipeline.progress import LineProgress
from elf.pipeline.runner import materialise
from elf.pipeline.runs import Naming, RunFolder, list_runs, read_run


def test_what_a_run_reaches_stays_until_the_run_is_removed(
    store: Store, watch: Recorder, quiet: LineProgress, tmp_path: Path
) -> None:
    plan = toy_plan()
    with store.using(plan.places()):
        folder = RunFolder(tmp_path / "runs", "tiny", Words(), plan)
        materialise(plan, store, watch=Naming(folder, watch), progress=quiet)
    [run] = list_runs(tmp_path / "runs")
    assert {step: artifact.path for step, artifact in run.steps.items()} == {
        name: store.path(planned.step.spec.name, planned.key)
        for name, planned in zip(plan.names(), plan, strict=True)
    }
    for place in plan.places():
        set_age(store.root, place, 30)
    [known] = known_folders(store.root)
    assert dict(known.reached) == {
        f"tiny/{name}": place for name, place in zip(plan.names(), plan.places(), strict=True)
    }
    assert survey(store, grace=DAY).removable == ()
    shutil.rmtree(tmp_path / "runs" / "tiny")
    with collecting(store, grace=DAY) as collector:
        assert [collector.remove(item) for item in collector.survey.removable] == [None, None]


def test_a_run_folder_holds_steps_of_one_configuration(
    store: Store, watch: Recorder, quiet: LineProgress, tmp_path: Path
) -> None:
    """What an earlier configuration made beyond the steps that this run visits is not shown beside them."""
    root = tmp_path / "runs"
    whole = toy_plan()
    earlier = RunFolder(root, "tiny", Words(), whole)
    outcomes = materialise(whole, store, watch=Naming(earlier, watch), progress=quiet)
    (earlier.path / "report.html").symlink_to("../../store/report/abc/report.html")
    changed = toy_plan(count=Count(scale=2.5))
    folder = RunFolder(root, "tiny", Words(), changed)
    some = materialise(changed, store, watch=Naming(folder, watch), progress=quiet, until="words")
    folder.finish(some)
    assert {path.name for path in folder.path.iterdir() if path.is_symlink()} == {"words"}
    earlier.add("count", outcomes["count"].artifact)  # that run went on beside this one
    folder.finish(some)
    assert {path.name for path in folder.path.iterdir() if path.is_symlink()} == {"words"}


def test_a_run_that_broke_off_has_a_name(
    store: Store, watch: Recorder, quiet: LineProgress, tmp_path: Path
) -> None:
    plan = toy_plan(count=Count(fail=True))
    folder = RunFolder(tmp_path / "runs", "tiny", Words(), plan)
    with pytest.raises(Failed):
        materialise(plan, store, watch=Naming(folder, watch), progress=quiet)
    [run] = list_runs(tmp_path / "runs")
    assert list(run.steps) == ["words"]
    assert run.name == "tiny"


def test_a_run_of_what_is_there_is_a_use_of_it(store: Store, watch: Recorder, quiet: LineProgress) -> None:
    plan = toy_plan()
    materialise(plan, store, watch=watch, progress=quiet)
    for place in plan.places():
        set_age(store.root, place, 30)
    assert len(survey(store, grace=DAY).removable) == 2
    with store.using(plan.places()):
        materialise(plan, store, watch=watch, progress=quiet)
    assert survey(store, grace=DAY).removable == ()


def test_building_is_a_use_of_the_inputs(store: Store, watch: Recorder, quiet: LineProgress) -> None:
    plan = toy_plan()
    materialise(plan, store, watch=watch, progress=quiet, only="words")
    [words, _] = plan.places()
    set_age(store.root, words, 30)
    materialise(plan, store, watch=watch, progress=quiet, only="count")
    assert store.last_use(*words) > 0
    assert survey(store, grace=DAY).removable == ()


def test_a_store_that_forgot_a_folder_is_told_again(
    store: Store, watch: Recorder, quiet: LineProgress, tmp_path: Path
) -> None:
    plan = toy_plan()
    for _ in range(2):
        folder = RunFolder(tmp_path / "runs", "tiny", Words(), plan)
        folder.finish(materialise(plan, store, watch=Naming(folder, watch), progress=quiet))
        [known] = known_folders(store.root)
        assert len(known.reached) == 2
        shutil.rmtree(store.root / ".roots")


def test_what_was_finished_is_shown_until_there_is_something_else(
    store: Store, watch: Recorder, quiet: LineProgress, tmp_path: Path
) -> None:
    root, whole = tmp_path / "runs", toy_plan()
    folder = RunFolder(root, "tiny", Words(), whole)
    folder.finish(materialise(whole, store, watch=Naming(folder, watch), progress=quiet))
    shown = {path.name: path.readlink() for path in folder.path.iterdir() if path.is_symlink()}
    changed = toy_plan(count=Count(fail=True))
    again = RunFolder(root, "tiny", Words(text="another"), changed)
    with pytest.raises(Failed):
        materialise(changed, store, watch=Naming(again, watch), progress=quiet)
    assert {path.name: path.readlink() for path in folder.path.iterdir() if path.is_symlink()} == shown
    assert "another" not in (folder.path / "experiment.yaml").read_text()


@pytest.mark.parametrize("name", ["..", "a/b", ".hidden", "tiny/"])
def test_a_run_is_no_path(name: str, tmp_path: Path) -> None:
    (tmp_path / "experiment.yaml").write_text("name: tiny\n")
    with pytest.raises(Failed, match="no run called"):
        read_run(tmp_path / "runs", name)


def test_runs_of_one_name_may_be_named_at_once(
    store: Store, watch: Recorder, quiet: LineProgress, tmp_path: Path
) -> None:
    """Two configurations, four runs of each: none stumbles over what another makes or takes away."""
    plans = [toy_plan(), toy_plan(count=Count(scale=2.5))]
    outcomes = [materialise(plan, store, watch=watch, progress=quiet) for plan in plans]

    def name(turn: int) -> None:
        for _ in range(25):
            folder = RunFolder(tmp_path / "runs", "tiny", Words(), plans[turn % 2])
            for step, outcome in outcomes[turn % 2].items():
                folder.add(step, outcome.artifact)
            folder.finish(outcomes[turn % 2])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(name, range(8)))
    [run] = list_runs(tmp_path / "runs")
    assert set(run.steps) == {"words", "count"}
    [known] = known_folders(store.root)
    assert known.seen
