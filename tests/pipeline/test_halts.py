"""Where an unfinished plan stands, by what its steps left in the store."""

from pathlib import Path

import pytest
from toy_stages import Count, Recorder, toy_plan

from elf.cache.store import Store
from elf.pipeline.errors import Failed
from elf.pipeline.halts import LOG, WORDS, find_halt
from elf.pipeline.progress import LineProgress
from elf.pipeline.runner import materialise


def test_a_finished_plan_has_none(store: Store, watch: Recorder, quiet: LineProgress) -> None:
    plan = toy_plan()
    materialise(plan, store, watch=watch, progress=quiet)
    assert find_halt(plan, store) is None


def test_what_nobody_began_is_next(store: Store, watch: Recorder, quiet: LineProgress) -> None:
    plan = toy_plan()
    halt = find_halt(plan, store)
    assert halt is not None
    assert (halt.step, halt.state, halt.missing, halt.steps) == ("words", "not begun", 2, 2)
    materialise(plan, store, watch=watch, progress=quiet, until="words")
    halt = find_halt(plan, store)
    assert halt is not None
    assert str(halt) == "Unfinished, 1 of 2 steps to go: next comes count."


def test_a_step_that_failed_says_why(store: Store, watch: Recorder, quiet: LineProgress) -> None:
    plan = toy_plan(count=Count(fail=True))
    with pytest.raises(Failed):
        materialise(plan, store, watch=watch, progress=quiet)
    halt = find_halt(plan, store)
    assert halt is not None
    assert (halt.state, halt.brief) == ("failed", "count failed")
    assert str(halt).endswith("count failed: The count failed because it was told to.")


def test_a_step_that_is_being_built_names_its_builder(store: Store) -> None:
    plan = toy_plan()
    with store.building(*plan["words"].place):
        halt = find_halt(plan, store)
    assert halt is not None
    assert halt.state == "at work"
    assert "process " in str(halt)


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("words: KeyboardInterrupt: ", "stopped"),
        ("words: Interrupted: Interrupted, and saved after step 3 of 9.", "stopped"),
        ("words: ValueError: no.", "failed"),
        ("words: reading: 3 of 9 rows", "killed"),
        ("words: finished after 1.5 s", "killed"),
        ("a line of a library: Error: of no step", "killed"),
    ],
)
def test_the_log_says_how_it_ended(store: Store, said: str, state: str) -> None:
    write_log(store, said)
    halt = find_halt(toy_plan(), store)
    assert halt is not None
    assert halt.state == state


def test_only_the_last_try_counts_and_long_reasons_are_cut(store: Store) -> None:
    begins = f"2026-11-30T10:00:00 words: words {toy_plan()['words'].key} begins"
    write_log(store, "words: ValueError: no.", begins)
    halt = find_halt(toy_plan(), store)
    assert halt is not None
    assert halt.state == "killed"
    write_log(store, f"words: Failed: {'why ' * 200}")
    halt = find_halt(toy_plan(), store)
    assert halt is not None
    assert len(halt.words) <= WORDS + 2


def write_log(store: Store, said: str, *more: str) -> None:
    stage, key = toy_plan()["words"].place
    log = Path(store.root, ".building", stage, key, LOG)
    log.parent.mkdir(parents=True, exist_ok=True)
    begins = f"2026-11-30T09:00:00 words: words {key} begins"
    log.write_text("\n".join([begins, f"2026-11-30T09:00:01 {said}", *more]) + "\n")
