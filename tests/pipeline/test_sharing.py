"""A run takes from a remote what it misses, lazily; a remote that fails costs a run nothing but a word."""

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import toy_stages
from toy_stages import BUILT, Count, Recorder, toy_plan

from elf.cache.errors import BadRemote, Unreachable
from elf.cache.manifest import Fingerprint
from elf.cache.pins import pin
from elf.cache.pulled import copies
from elf.cache.pushing import push
from elf.cache.records import check_files
from elf.cache.remote import Held, Remote
from elf.cache.store import Store
from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.plan import Plan, Step
from elf.pipeline.progress import LineProgress
from elf.pipeline.runner import Outcome, materialise, needed
from elf.pipeline.sharing import ReadThrough, keep_below, meter_of


@pytest.fixture
def remote(tmp_path: Path) -> Remote:
    (tmp_path / "remote").mkdir()
    return Remote(f"file://{tmp_path}/remote")


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def through(remote: Remote, said: list[str]) -> ReadThrough:
    return ReadThrough(remote, limit=None, tell=said.append)


@pytest.fixture
def shared(tmp_path: Path, remote: Remote, quiet: LineProgress) -> Callable[..., None]:
    """Have another host build steps of a plan and push them."""

    def share(plan: Plan, *steps: str) -> None:
        elsewhere = Store(tmp_path / "elsewhere")
        done = materialise(plan, elsewhere, watch=Recorder(), progress=quiet)
        for step in steps:
            push(done[step].artifact, remote, meter=meter_of(quiet, step))
        BUILT.clear()

    return share


def run(
    plan: Plan, store: Store, watch: Recorder, remote: ReadThrough, **asked: object
) -> dict[str, Outcome]:
    return materialise(plan, store, watch=watch, progress=LineProgress(every=1e9), remote=remote, **asked)  # type: ignore[arg-type]


def test_what_is_missing_here_and_there_is_pulled_not_built(
    shared: Callable[..., None], store: Store, watch: Recorder, through: ReadThrough, said: list[str]
) -> None:
    plan = toy_plan()
    shared(plan, "words", "count")
    done = run(plan, store, watch, through)
    assert BUILT == []
    assert watch.events == ["pull count", "done count"], "words is not needed, so it is not fetched"
    assert (done["count"].reused, done["count"].pulled) == (True, True)
    check_files(done["count"].artifact.path, done["count"].artifact.manifest, deep=True)
    assert list(store.artifacts("words")) == []
    again = run(plan, store, watch, through)
    assert (again["count"].reused, again["count"].pulled) == (True, False)
    assert said == []


def test_an_input_of_what_must_be_built_is_pulled(
    shared: Callable[..., None], store: Store, watch: Recorder, through: ReadThrough
) -> None:
    plan = toy_plan()
    shared(plan, "words")
    assert needed(plan, store, remote=through) == ("words", "count")
    done = run(plan, store, watch, through)
    assert BUILT == ["count"]
    assert watch.events == ["pull words", "done words", "start count", "done count"]
    assert done["words"].pulled


def test_only_pulls_inputs_but_builds_none(
    shared: Callable[..., None], store: Store, watch: Recorder, through: ReadThrough
) -> None:
    plan = toy_plan(count=Count(scale=2))
    with pytest.raises(Failed, match="'count' needs 'words'"):
        run(plan, store, watch, through, only="count")
    shared(toy_plan(), "words")
    fresh = ReadThrough(through.remote, limit=None, tell=pytest.fail)
    assert run(plan, store, watch, fresh, only="count").keys() == {"words", "count"}
    assert BUILT == ["count"]


def test_force_builds_though_it_could_be_pulled(
    shared: Callable[..., None], store: Store, watch: Recorder, through: ReadThrough
) -> None:
    plan = toy_plan()
    shared(plan, "words", "count")
    run(plan, store, watch, through, force=frozenset({"count"}))
    assert BUILT == ["count"]
    assert watch.events[0] == "pull words"


def test_nothing_is_asked_for_what_is_here(
    store: Store, watch: Recorder, through: ReadThrough, quiet: LineProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = toy_plan()
    materialise(plan, store, watch=watch, progress=quiet)
    monkeypatch.setattr(Remote, "find", lambda self, stage, key: pytest.fail("it asked"))
    assert all(outcome.reused for outcome in run(plan, store, watch, through).values())


def test_a_remote_that_is_down_is_asked_once_and_then_all_is_built(
    store: Store, watch: Recorder, through: ReadThrough, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def down(self: Remote, stage: str, key: Fingerprint) -> Held | None:
        asked.append(stage)
        raise Unreachable("The remote is down.")

    monkeypatch.setattr(Remote, "find", down)
    run(toy_plan(), store, watch, through)
    assert BUILT == ["words", "count"]
    assert asked == ["count"]
    assert said == ["The remote is down. This run goes on without it: what is missing here is built here."]


def test_a_remote_that_goes_down_in_the_middle_costs_the_run_nothing(
    shared: Callable[..., None],
    store: Store,
    watch: Recorder,
    through: ReadThrough,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def down(self: Remote, path: str, start: int, end: int) -> memoryview:
        raise Unreachable("The remote is down.")

    plan = toy_plan()
    shared(plan, "words", "count")
    monkeypatch.setattr(Remote, "read", down)
    done = run(plan, store, watch, through)
    assert BUILT == ["words", "count"], "what the remote did not bring needs its inputs after all"
    assert not any(outcome.reused for outcome in done.values())
    assert len(said) == 1


def test_what_is_damaged_at_the_remote_is_named_and_built(
    shared: Callable[..., None],
    store: Store,
    watch: Recorder,
    through: ReadThrough,
    said: list[str],
    tmp_path: Path,
) -> None:
    plan = toy_plan()
    shared(plan, "words", "count")
    (file,) = (tmp_path / "remote").glob("count/*/*/count.json")
    file.write_text("9.0")
    done = run(plan, store, watch, through)
    assert BUILT == ["count"]
    assert done["words"].pulled
    assert json.loads((done["count"].artifact.path / "count.json").read_text()) == 3.0
    assert len(said) == 1
    assert "count.json has digest" in said[0]
    assert said[0].endswith("'count' is built here instead.")


def test_a_wrong_address_ends_the_run_if_it_is_the_first_answer(
    store: Store,
    watch: Recorder,
    through: ReadThrough,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: Remote, stage: str, key: Fingerprint) -> Held | None:
        raise BadRemote("There is no such bucket.")

    find = Remote.find
    monkeypatch.setattr(Remote, "find", refuse)
    with pytest.raises(Misconfigured, match="no such bucket"):
        run(toy_plan(), store, watch, through)
    assert BUILT == []
    monkeypatch.setattr(Remote, "find", find)
    run(toy_plan(), store, watch, through, until="words")
    monkeypatch.setattr(Remote, "find", refuse)
    run(toy_plan(), store, watch, through)
    assert BUILT == ["words", "count"], "credentials that run out in the middle end no run"
    assert len(said) == 1


def test_two_runs_at_once_pull_once(
    shared: Callable[..., None], store: Store, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = toy_plan()
    shared(plan, "count")
    reads: list[str] = []
    read = Remote.read

    def counted(self: Remote, path: str, start: int, end: int) -> memoryview:
        reads.append(path)
        return read(self, path, start, end)

    monkeypatch.setattr(Remote, "read", counted)
    threads = [
        threading.Thread(
            target=run,
            args=(plan, Store(store.root), Recorder(), ReadThrough(remote, limit=None, tell=pytest.fail)),
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert BUILT == []
    assert len(reads) == len(set(reads)) > 0


def many(count: int) -> Plan:
    return Plan(
        [
            Step(f"words-{i}", toy_stages.WORDS, toy_stages.Words(text=f"{i} " * 100), prefix="words")
            for i in range(count)
        ]
    )


def test_copies_go_when_the_limit_wants_room_the_least_recently_used_first(
    shared: Callable[..., None],
    store: Store,
    watch: Recorder,
    remote: Remote,
    said: list[str],
    quiet: LineProgress,
) -> None:
    plan = many(6)
    shared(plan, *plan.names())
    materialise(plan, store, watch=watch, progress=quiet, until="words-0")  # built here
    one = max(held.bytes() for planned in plan if (held := remote.find("words", planned.key)) is not None)
    through = ReadThrough(remote, limit=3 * one, tell=said.append)
    for name in ("words-1", "words-2", "words-3"):
        run(plan, store, watch, through, only=name)
    with store.using([("words", plan["words-1"].key)]):
        pass  # used again
    pin(store.root, ("words", plan["words-2"].key))
    run(plan, store, watch, through, only="words-4")
    assert names(plan, store) == ["words-0", "words-1", "words-2", "words-4"], "3 was used longest ago"
    with store.using([("words", plan["words-1"].key)]):
        run(plan, store, watch, through, only="words-5")
    assert names(plan, store) == ["words-0", "words-1", "words-2", "words-5"], "1 is in use, 2 is pinned"
    assert sum(copy.bytes for copy in copies(store)) <= 3 * one
    assert said == []
    again = run(plan, store, watch, ReadThrough(remote, limit=3 * one, tell=said.append), only="words-3")
    assert again["words-3"].pulled
    assert "words-0" in names(plan, store)


def test_what_the_remote_lost_is_kept_here_whatever_the_limit(
    shared: Callable[..., None],
    store: Store,
    watch: Recorder,
    remote: Remote,
    tmp_path: Path,
) -> None:
    plan = many(2)
    shared(plan, *plan.names())
    through = ReadThrough(remote, limit=1, tell=pytest.fail)
    run(plan, store, watch, through, only="words-0")
    (tmp_path / "remote" / "words" / plan["words-0"].key / "manifest.json").unlink()
    run(plan, store, watch, through, only="words-1")
    assert names(plan, store) == ["words-0", "words-1"]
    said: list[str] = []
    keep_below(store, remote, limit=1, coming=1000, tell=said.append)
    assert names(plan, store) == ["words-0"]
    assert said[0].startswith("removed the copy of words")
    assert re.match(r"pulled artifacts will take .*B more than ELF_REMOTE_LIMIT allows", said[1])


def test_what_was_built_here_under_a_pulled_key_is_no_copy(
    shared: Callable[..., None], store: Store, watch: Recorder, remote: Remote, quiet: LineProgress
) -> None:
    plan = many(2)
    shared(plan, *plan.names())
    through = ReadThrough(remote, limit=1, tell=pytest.fail)
    run(plan, store, watch, through, only="words-0")
    materialise(plan, store, watch=watch, progress=quiet, only="words-0", force=frozenset({"words-0"}))
    run(plan, store, watch, through, only="words-1")
    assert names(plan, store) == ["words-0", "words-1"]


def names(plan: Plan, store: Store) -> list[str]:
    """Steps of the plan that lie in the store."""
    return [planned.step.name for planned in plan if store.find("words", planned.key) is not None]
