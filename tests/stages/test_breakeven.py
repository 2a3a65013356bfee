"""When a store is ahead of an encoder beside training, in numbers worked out by hand and in words."""

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.cache.store import Artifact
from elf.pipeline.config import load_experiment
from elf.pipeline.plan import Planned
from elf.stages.breakeven import BreakEven, weigh
from elf.stages.config import Experiment
from elf.stages.estimate import Estimator
from elf.stages.experiment import plan_experiment
from elf.stages.machine import DiskSpeed, Machine, reference

SHIPPED = Path(__file__).parent.parent.parent / "configs"
MACHINE = Machine(2, 0, reference(2), memory=8 * 10**9)
PLAIN = BreakEven(encode=110, live=100, stall=0, training=1000, bytes=10**9, epochs=5)


def absent(planned: Planned) -> Artifact | None:
    return None


def weighed(name: str, *changed: str, machine: Machine = MACHINE) -> BreakEven | None:
    experiment = load_experiment(name, Experiment, changed, SHIPPED)
    plan = plan_experiment(experiment)
    work = Estimator(experiment, machine)
    work.walk(plan, absent)
    return weigh(work, plan["train"])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "A store pays after 1.1 epochs of the 5 in this run."),
        ({"encode": 100}, "A store pays after 1 epoch of the 5 in this run."),
        ({"epochs": 0.84}, "A store never pays within this run (0.84 epochs), but with the 2nd like it."),
        ({"epochs": 0.1}, "A store never pays within this run (0.1 epochs), but with the 11th like it."),
        ({"stall": 100}, "A store never pays: the disk gives its bytes more slowly than that."),
        ({"live": 0.01}, "A store never pays: it saves next to nothing."),
        ({"epochs": 1e-5}, "A store never pays within this run (1e-05 epochs), but 1.1 epochs."),
    ],
)
def test_verdicts(changed: dict[str, float], words: str) -> None:
    assert replace(PLAIN, **changed).lines()[1] == words


def test_costs_are_named() -> None:
    assert PLAIN.lines()[0] == "Encoder: live ~2 min an epoch (+10%); stored ~2 min once, and 1.00 GB."
    assert "(+0.1%)" in replace(PLAIN, training=1e5).lines()[0]


def test_never_is_no_number_in_json() -> None:
    assert PLAIN.plain()["pays_after_epochs"] == pytest.approx(1.1)
    assert PLAIN.plain()["pays_after_runs"] == pytest.approx(0.22)
    never = replace(PLAIN, stall=200)
    assert (never.after, never.runs) == (inf, inf)
    assert never.plain()["pays_after_epochs"] is None
    assert never.plain()["saved_seconds_per_epoch"] == -100


@given(
    encode=st.floats(1, 1e10),
    share=st.floats(1e-6, 10),
    stall=st.floats(0, 1e10),
    training=st.floats(1e-3, 1e9),
    size=st.integers(1, 10**15),
    epochs=st.floats(1e-6, 1e4),
)
@settings(max_examples=40)
def test_lines_fit_80_columns(
    encode: float, share: float, stall: float, training: float, size: int, epochs: float
) -> None:
    made = BreakEven(encode, share * training, stall, training, size, epochs)
    assert all(len(line) <= 80 for line in made.lines())
    assert (made.after <= epochs) == ("pays after" in made.lines()[1]) or made.after >= 1000


def test_on_one_machine_a_store_pays_after_little_more_than_an_epoch() -> None:
    """Encoding once costs what an epoch beside training costs, and its start."""
    made = weighed("quickstart")
    assert made is not None
    assert made.encode == pytest.approx(made.live + 1)
    assert made.epochs == pytest.approx(200 * 24 / 6075)
    assert made.bytes == 6075 * (32 * 384 * 2 + 16)


def test_pairs_are_encoded_in_three_views_but_read_in_two() -> None:
    made = weighed("wmt14-de-en", "train.objective.condition_dropout=0.25", "train.precision=float32")
    assert made is not None
    assert (made.encode - 1) / made.live == pytest.approx((64 + 128 + 128) / (128 + 0.75 * 64))


def test_a_disk_slower_than_training_takes_the_saving_away() -> None:
    disk = DiskSpeed(write=1e9, read=1e6, measured="")
    made = weighed("owt-full", "train.precision=float32", machine=replace(MACHINE, disk=disk))
    fast = weighed("owt-full", "train.precision=float32")
    assert made is not None
    assert fast is not None
    assert fast.stall == 0
    assert made.stall == 0  # this machine trains more slowly still
    gpus = Machine(64, 8, reference(64), 10**12, replace(disk, read=3e8))
    starved = weighed("owt-full", machine=gpus)
    assert starved is not None
    assert starved.stall > 0
    assert starved.stall == pytest.approx(starved.bytes / 3e8 - starved.training)
    assert "never pays: the disk" in starved.lines()[1]
    held = replace(gpus, memory=10**14)
    roomy = weighed("owt-full", machine=held)
    assert roomy is not None
    assert roomy.stall == 0


def test_too_little_known_is_no_verdict() -> None:
    assert weighed("quickstart", "encode.expect_width=null") is None
    assert (
        weighed("quickstart", "data.train.expect_tokens=null", "data.train.asset.expect_bytes=null") is None
    )
