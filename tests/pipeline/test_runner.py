"""The runner: reuse, selection, force, failure, races."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import toy_stages
from toy_stages import BUILT, Count, Recorder, Words, toy_plan

from elf.cache.errors import Damaged, StoreBusy
from elf.cache.manifest import Fingerprint
from elf.cache.store import Store
from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.plan import Plan
from elf.pipeline.progress import LineProgress
from elf.pipeline.runner import Outcome, materialise, needed
from elf.pipeline.stage import StageContext


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


def by_link(path: Path) -> None:
    kept = path.with_name("elsewhere")
    path.rename(kept)
    path.symlink_to(kept)


def emptied(path: Path) -> None:
    path.unlink()
    path.touch()


FILE_HARM: dict[str, tuple[Callable[[Path], object], str]] = {
    "gone": (Path.unlink, "words.json is missing"),
    "cut": (emptied, "words.json holds 0 bytes, the manifest says"),
    "a link": (by_link, "words.json is a link"),
    "joined": (lambda path: path.with_name("stranger").touch(), "stranger is not named in the manifest"),
}


@pytest.mark.parametrize("harm", FILE_HARM)
@pytest.mark.parametrize("asked", ["words", "count"], ids=["reused", "taken as an input"])
def test_an_artifact_whose_files_changed_is_neither_reused_nor_taken(
    store: Store, watch: Recorder, quiet: LineProgress, harm: str, asked: str
) -> None:
    plan = toy_plan()
    run(plan, store, watch, quiet, until="words")
    do, words = FILE_HARM[harm]
    do(store.path("words", plan["words"].key) / "words.json")
    with pytest.raises(Damaged, match=words):
        run(plan, store, watch, quiet, only=asked)
    assert BUILT == ["words"]
    run(plan, store, watch, quiet, until=asked, force=frozenset({"words"}))
    assert BUILT[1] == "words"


def test_a_changed_byte_of_an_input_is_never_data(store: Store, watch: Recorder, quiet: LineProgress) -> None:
    plan = toy_plan()
    run(plan, store, watch, quiet, until="words")
    path = store.path("words", plan["words"].key) / "words.json"
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(raw)
    with pytest.raises(Damaged, match=r"words\.json has digest .*--force"):
        run(plan, store, watch, quiet, only="count")
    assert BUILT == ["words"]


def test_a_folder_of_the_store_may_be_no_link(
    store: Store, watch: Recorder, quiet: LineProgress, tmp_path: Path
) -> None:
    plan = toy_plan()
    run(plan, store, watch, quiet)
    for place in (store.root / "words", store.path("words", plan["words"].key)):
        moved = tmp_path / "moved"
        place.rename(moved)
        place.symlink_to(moved)
        with pytest.raises(Damaged, match=f"{place} is a link"):
            run(plan, store, watch, quiet)
        place.unlink()
        moved.rename(place)
    assert all(outcome.reused for outcome in run(plan, store, watch, quiet).values())


READER = """
import sys
from pathlib import Path
from elf.cache.store import Store
store, key, used = Store(Path(sys.argv[1])), sys.argv[2], sys.argv[3]
with store.building("count", key, uses=[("words", used)]):
    print("reading", flush=True)
    sys.stdin.read()
"""


def test_what_another_process_builds_from_is_not_replaced(
    store: Store, watch: Recorder, quiet: LineProgress
) -> None:
    plan = toy_plan()
    run(plan, store, watch, quiet)
    before = (store.path("words", plan["words"].key) / "manifest.json").read_bytes()
    command = [sys.executable, "-c", READER, str(store.root), "0" * 64, plan["words"].key]
    reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    assert reader.stdout.readline() == "reading\n"
    with pytest.raises(StoreBusy, match=rf"words .* is being read by process {reader.pid} .*not replaced"):
        run(plan, store, watch, quiet, force=frozenset({"words"}))
    assert BUILT == ["words", "count"], "and nothing was built in vain"
    assert (store.path("words", plan["words"].key) / "manifest.json").read_bytes() == before
    reader.kill()
    reader.communicate()
    again = run(plan, store, watch, quiet, force=frozenset({"words"}))
    assert again["words"].compared == "identical"


def test_what_is_read_by_the_end_of_a_rebuild_stays(
    store: Store, watch: Recorder, quiet: LineProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = toy_plan()
    run(plan, store, watch, quiet)
    make, readers = toy_stages.make_words, []

    def slow(section: Words, context: StageContext):
        reading = Store(store.root).building(
            "count", Fingerprint("1" * 64), uses=[("words", plan["words"].key)]
        )
        reading.__enter__()
        readers.append(reading)
        return make(section, context)

    monkeypatch.setattr(toy_stages, "make_words", slow)
    with pytest.raises(StoreBusy, match=f"read by process {os.getpid()}"):
        run(plan, store, watch, quiet, force=frozenset({"words"}))
    readers.pop().__exit__(None, None, None)
    monkeypatch.setattr(toy_stages, "make_words", make)
    assert run(plan, store, watch, quiet, force=frozenset({"words"}))["words"].compared == "identical"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"only": "count", "until": "words"}, "give one of them"),
        (
            {"until": "words", "force": frozenset({"count"})},
            "--force count has no step that --until words reaches",
        ),
        (
            {"only": "count", "force": frozenset({"words"})},
            "--force words has no step that --only count reaches",
        ),
    ],
)
def test_what_cannot_be_had_together_is_refused(
    store: Store, watch: Recorder, quiet: LineProgress, asked: dict[str, object], words: str
) -> None:
    with pytest.raises(Misconfigured, match=words):
        run(toy_plan(), store, watch, quiet, **asked)
    assert BUILT == []


def test_until_and_force_go_together(store: Store, watch: Recorder, quiet: LineProgress) -> None:
    run(toy_plan(), store, watch, quiet)
    again = run(toy_plan(), store, watch, quiet, until="words", force=frozenset({"words"}))
    assert BUILT == ["words", "count", "words"]
    assert again.keys() == {"words"}


def test_what_nobody_foresaw_is_in_the_log_with_its_place(
    store: Store, watch: Recorder, quiet: LineProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(section: Words, context: StageContext) -> None:
        raise ZeroDivisionError("by zero, with token=hf_1234567890abcdefghij")

    monkeypatch.setattr(toy_stages, "make_words", broken)
    plan = toy_plan()
    log = store.root / ".building" / "words" / plan["words"].key / "aux" / "log.txt"
    with pytest.raises(ZeroDivisionError, match=f"The log of words is {log}"):
        run(plan, store, watch, quiet)
    text = log.read_text()
    assert "in broken" in text
    assert "hf_1234567890abcdefghij" not in text


def test_a_failure_leaves_no_finished_name_and_keeps_its_log(
    store: Store, watch: Recorder, quiet: LineProgress
) -> None:
    plan = toy_plan(count=Count(fail=True))
    log = store.root / ".building" / "count" / plan["count"].key / "aux" / "log.txt"
    with pytest.raises(Failed, match=rf"told to\. The log of count is {log}\.$"):
        run(plan, store, watch, quiet)
    assert store.find("count", plan["count"].key) is None
    assert "told to" in log.read_text()


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
