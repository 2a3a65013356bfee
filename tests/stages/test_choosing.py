"""Which source a plan trains from, and why: by what is there, what fits, and what is asked for."""

from collections.abc import Callable
from pathlib import Path

import pytest
from judging import make_artifact

from elf.cache.errors import Damaged
from elf.cache.store import Artifact
from elf.pipeline.config import load_experiment
from elf.pipeline.errors import Misconfigured
from elf.pipeline.plan import Plan, Planned, Tie
from elf.stages import sources
from elf.stages.compute import TrainCompute
from elf.stages.config import Experiment
from elf.stages.experiment import plan_experiment
from elf.stages.machine import Machine, reference
from elf.stages.sources import Choice, settle

SHIPPED = Path(__file__).parent.parent.parent / "configs"
TERABYTE = 10**12
CPUS = Machine(2, 0, reference(2), 8 * 2**30)


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "this_machine", lambda: CPUS)


def nothing(planned: Planned) -> Artifact | None:
    return None


def settled(
    name: str, *settings: str, free: int, find: Callable[[Planned], Artifact | None] = nothing
) -> tuple[Plan, Choice]:
    experiment = load_experiment(name, Experiment, settings, SHIPPED)
    plan, choice = settle(plan_experiment(experiment), experiment, find, lambda planned: free)
    assert choice is not None
    train = plan["train"].step
    assert isinstance(train.compute, TrainCompute)
    assert (train.compute.source, train.compute.window_bytes) == (choice.source, choice.window_bytes)
    return plan, choice


def spared(plan: Plan) -> set[str]:
    return {name for name in plan.spared() if name.startswith("encode")}


def test_a_store_that_fits_is_built() -> None:
    plan, choice = settled("owt-full", free=12 * TERABYTE)
    assert str(choice) == "Latents: from the store: ~9.25 TB fit, 12.0 TB are free."
    assert spared(plan) == set()
    assert plan["train"].step.tie("latents") is Tie.BUILT


def test_what_does_not_fit_is_encoded_ahead() -> None:
    plan, choice = settled("owt-full", free=TERABYTE)
    assert choice.source == "rolling"
    assert choice.window_bytes == TrainCompute().window_bytes
    assert "window of 8.59 GB: ~9.25 TB do not fit, 1.00 TB are free" in str(choice)
    assert spared(plan) == {"encode", "encode-validation"}
    assert plan["train"].step.tie("heldout_latents") is Tie.INLINE


def test_a_margin_stays_free() -> None:
    """All that is missing takes 9.3 TB; a tenth of the disk is left alone."""
    assert settled("owt-full", free=10 * TERABYTE)[1].source == "rolling"
    assert settled("owt-full", free=11 * TERABYTE)[1].source == "store"


def test_the_window_shrinks_with_the_disk() -> None:
    _, choice = settled("owt-full", free=65 * 10**9)
    assert 0 < choice.window_bytes < 4 * 10**9


def test_where_no_window_fits_the_encoder_runs_beside_the_steps() -> None:
    plan, choice = settled("owt-full", free=10**9)
    assert choice.source == "live"
    assert "~9.25 TB do not fit, 1.00 GB are free" in choice.reason
    assert choice.reason.endswith("nor does a window of two steps")
    assert spared(plan) == {"encode", "encode-validation"}


def test_a_window_too_small_for_two_steps_is_refused_before_anything_runs() -> None:
    asked = ("compute.train.source=rolling", "compute.train.window_bytes=9000")
    with pytest.raises(Misconfigured, match=r"may take 1\.12 kB of disk, and two steps of 64 rows take"):
        settled("owt-full", *asked, free=TERABYTE)


def test_keys_do_not_know_the_source() -> None:
    plans = [
        settled("owt-full", f"compute.train.source={each}", free=1)[0]
        for each in ("store", "live", "rolling")
    ]
    assert len({tuple(planned.key for planned in plan) for plan in plans}) == 1


@pytest.mark.parametrize("asked", ["store", "live", "rolling"])
def test_what_is_asked_for_is_done(asked: str) -> None:
    plan, choice = settled("wmt14-de-en", f"compute.train.source={asked}", free=1)
    assert (choice.source, choice.reason) == (asked, "as compute.train.source asks")
    # Sampling is conditioned on the test split's sources, whatever training reads.
    assert spared(plan) == (set() if asked == "store" else {"encode", "encode-validation"})
    assert "encode-test" in plan.needs("sample-ode-64")


def finished(stage: str, tmp_path: Path) -> Callable[[Planned], Artifact | None]:
    artifact = make_artifact(tmp_path / stage, stage)

    def find(planned: Planned) -> Artifact | None:
        return artifact if planned.step.name == stage else None

    return find


def test_a_store_that_is_there_is_read_whatever_is_free(tmp_path: Path) -> None:
    _, choice = settled("owt-full", free=1, find=finished("encode", tmp_path))
    assert str(choice) == "Latents: from the store: they are there."


def test_measured_takes_a_store() -> None:
    with pytest.raises(Misconfigured, match=r"std is measured.*Give train\.latents\.std a number"):
        settled("tiny", "compute.train.source=live", free=TERABYTE)
    _, choice = settled("tiny", free=1)
    assert choice.source == "store"
    assert "may not fit" in choice.reason
    _, choice = settled("tiny", "train.latents.std=1.5", free=1)
    assert choice.source == "live"


def test_a_finished_run_is_not_held_against_its_source(tmp_path: Path) -> None:
    _, choice = settled("tiny", "compute.train.source=live", free=1, find=finished("train", tmp_path))
    assert choice.source == "live"


def test_an_unknown_size_is_tried() -> None:
    _, choice = settled("owt-full", "encode.expect_width=null", free=1)
    assert choice.source == "store"
    assert "not known yet" in choice.reason


def test_what_is_damaged_is_missing() -> None:
    def find(planned: Planned) -> Artifact | None:
        raise Damaged(f"{planned.step.name} is damaged")

    assert settled("owt-full", free=TERABYTE, find=find)[1].source == "rolling"


def test_on_the_training_gpus_a_window_saves_nothing_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sources, "this_machine", lambda: Machine(8, 8, reference(8), 2**40))
    words = "on the GPUs that train it saves nothing over live"
    assert words in str(settled("owt-full", free=TERABYTE)[1])
    assert words not in str(settled("owt-full", "compute.encode.device=cpu", free=TERABYTE)[1])


def test_imported_weights_train_nothing() -> None:
    experiment = load_experiment(
        "owt-full",
        Experiment,
        ["weights.asset.uri=hub:some/weights@0123456789012345678901234567890123456789"],
        SHIPPED,
    )
    plan = plan_experiment(experiment)
    assert settle(plan, experiment, nothing, lambda planned: 1) == (plan, None)
