"""What cannot fit does not start, what rests on a guess is warned of, what lies there is not asked for twice."""

from dataclasses import replace
from pathlib import Path

import pytest

from elf.cache.store import Artifact
from elf.pipeline.config import load_experiment
from elf.pipeline.errors import Failed
from elf.stages.config import Experiment
from elf.stages.experiment import plan_experiment
from elf.stages.room import Room, measure_room, refuse_what_cannot_fit
from elf.stages.totals import Estimate

SHIPPED = Path(__file__).parent.parent.parent / "configs"
STORE = Path("/data/store")
PLAN = plan_experiment(load_experiment("quickstart", Experiment, ("encode.dtype=float32",), SHIPPED))
THERE = Artifact(Path(), None)  # type: ignore[arg-type]


def step(
    name: str, size: int | None, *, sure: bool = True, scratch: int = 0, there: bool = False
) -> Estimate:
    found = THERE if there else None
    return Estimate(PLAN[name], found, None, None, size, None, sure=sure, scratch=scratch)


def room(*builds: Estimate, free: int = 1000, begun: dict[str, int] | None = None) -> Room:
    lying = begun or {}
    return measure_room(builds, free, lambda planned: lying.get(planned.step.name, 0))


def test_what_fits_says_nothing() -> None:
    assert refuse_what_cannot_fit(room(step("encode", 900), step("train", 90)), STORE) is None
    assert refuse_what_cannot_fit(room(), STORE) is None


def test_a_margin_stays_free() -> None:
    with pytest.raises(Failed):
        refuse_what_cannot_fit(room(step("encode", 995)), STORE)


def test_a_refusal_names_what_it_needs_has_and_could_do_instead() -> None:
    needed = room(step("tokenize", 10**9), step("encode", 9 * 10**9), free=5 * 10**9)
    with pytest.raises(Failed) as refusal:
        refuse_what_cannot_fit(needed, STORE)
    words = str(refusal.value)
    for part in ("10.0 GB", "5.00 GB", str(STORE), "encode with ~9.00 GB", "2 steps"):
        assert part in words
    for way in ("rolling", "live", "encode.dtype=float16", "tokenize.rows", "--store", "elf plan"):
        assert way in words
    assert "\n" not in words


def test_alternatives_are_those_of_the_largest_step() -> None:
    with pytest.raises(Failed) as refusal:
        refuse_what_cannot_fit(room(step("fetch-judge", 10**9)), STORE)
    assert "rolling" not in str(refusal.value)
    assert "the step to be built needs" in str(refusal.value)
    with pytest.raises(Failed, match=r"train\.keep=1"):
        refuse_what_cannot_fit(room(step("train", 10**9)), STORE)


def test_a_guess_is_refused_only_if_half_of_it_does_not_fit() -> None:
    told = refuse_what_cannot_fit(room(step("encode", 1500, sure=False)), STORE)
    assert told is not None
    assert "may not fit" in told
    with pytest.raises(Failed):
        refuse_what_cannot_fit(room(step("encode", 2500, sure=False)), STORE)


def test_unknown_sizes_never_block() -> None:
    assert refuse_what_cannot_fit(room(step("encode", None), step("train", None)), STORE) is None


def test_what_an_earlier_run_began_is_there_already() -> None:
    assert refuse_what_cannot_fit(room(step("encode", 1500), begun={"encode": 800}), STORE) is None
    with pytest.raises(Failed):
        refuse_what_cannot_fit(room(step("encode", 1500), begun={"train": 800}), STORE)


def test_what_is_built_again_goes_beside_the_old_and_takes_its_place() -> None:
    """Three rebuilds of 900 bytes need 900, one after another."""
    again = [step(name, 900, there=True) for name in ("tokenize", "encode", "train")]
    assert room(*again).expected == 900
    assert room(step("report", 50), *again).expected == 950
    assert refuse_what_cannot_fit(room(*again), STORE) is None


def test_scratch_is_needed_while_its_step_runs() -> None:
    made = room(step("encode", 100), step("train", 200, scratch=600), step("report", 50))
    assert made.expected == 900
    assert made.least == 350
    assert room(step("train", 200, scratch=600), begun={"train": 500}).expected == 300


def test_a_key_counts_once() -> None:
    assert room(step("encode", 600), step("encode", 600)).expected == 600


def test_the_least_is_never_more_than_what_is_expected() -> None:
    made = room(step("encode", 800, sure=False), step("train", 100))
    assert (made.least, made.expected) == (500, 900)
    assert made.fits
    assert not replace(made, free=900).fits
