"""What a plan says it will cost, against counts made by hand and against measured figures."""

from dataclasses import replace
from pathlib import Path

import pytest
from judging import make_artifact

from elf.cache.manifest import Fingerprint
from elf.cache.store import Artifact
from elf.pipeline.config import load_experiment
from elf.pipeline.plan import Planned
from elf.pipeline.stage import Compute
from elf.stages.config import Experiment
from elf.stages.estimate import estimate_plan
from elf.stages.experiment import plan_experiment
from elf.stages.machine import DiskSpeed, Machine, Work, reference
from elf.stages.totals import Estimate, total_bytes, total_seconds

SHIPPED = Path(__file__).parent.parent.parent / "configs"
TWO_CORES = Machine(2, 0, reference(2), memory=8 * 10**9)
EIGHT_GPUS = Machine(64, 8, reference(64), memory=10**12)


def estimates(name: str, *settings: str, machine: Machine = TWO_CORES) -> dict[str, Estimate]:
    experiment = load_experiment(name, Experiment, settings, SHIPPED)
    plan = plan_experiment(experiment)
    return {each.planned.step.name: each for each in estimate_plan(plan, experiment, absent, machine)}


def absent(planned: Planned) -> Artifact | None:
    return None


def test_every_step_of_owt_full_has_a_size_and_a_time_with_nothing_here() -> None:
    for each in estimates("owt-full").values():
        assert each.bytes is not None
        assert each.seconds is not None


def test_the_embeddings_of_openwebtext_take_nine_terabytes() -> None:
    encode = estimates("owt-full")["encode"]
    rows = int(9.04e9 * 0.999) // 1024
    assert (encode.rows, encode.bytes) == (rows, rows * (1024 * 512 * 2 + 16))
    wide = estimates("owt-full", "encode.dtype=float32")["encode"]
    assert wide.bytes == rows * (1024 * 512 * 4 + 16)


def test_elf_b_has_105_million_weights() -> None:
    train = estimates("owt-full", "train.steps=1", "train.epochs=null")["train"]
    assert train.bytes is not None
    assert train.bytes / 12 == pytest.approx(105e6, rel=0.03)


def test_a_quickstart_takes_what_it_took() -> None:
    """On machine A: 355 s in all, of which 189 s training, 5 s a sampling row, 13 s an evaluation."""
    made = estimates("quickstart")
    assert total_seconds(made.values()).known == pytest.approx(355, rel=0.25)
    for step, seconds in (("train", 189), ("sample-sde", 5.0), ("evaluate-real", 13)):
        assert made[step].seconds == pytest.approx(seconds, rel=0.25)


def test_tiny_takes_what_it_took() -> None:
    """On machine A: 29 s in all, most of it imports."""
    assert total_seconds(estimates("tiny").values()).known == pytest.approx(29, rel=0.3)


def test_training_on_gpus_takes_hours() -> None:
    """The authors report 20 h on eight H200; at 30 to 40 % of their peak it were 4 to 5."""
    train = estimates("owt-full", machine=EIGHT_GPUS)["train"]
    assert train.seconds is not None
    assert 3 * 3600 < train.seconds < 20 * 3600


def test_tokens_are_counted() -> None:
    made = estimates("quickstart")
    assert made["tokenize"].tokens == made["encode"].tokens == 6075 * 32
    assert made["train"].tokens == 200 * 24 * 32
    assert made["sample-ode"].tokens == made["evaluate-ode"].tokens == 64 * 32


def test_followed_texts_are_sampled_once_more_and_decoded_at_every_reading() -> None:
    """Four of 64 at 16 steps; with so many words, a decoding is near three steps."""
    none, four = (
        estimates("quickstart", f"sample.0.trajectories={count}")["sample-ode"].seconds for count in (0, 4)
    )
    assert none is not None
    assert four is not None
    assert (four - none) / (none - 0.5) == pytest.approx(4 * (16 + 17 * 3) / (64 * (16 + 3)), rel=0.2)


def test_processes_that_have_batches_share_the_sampling() -> None:
    """Of four batches, on eight GPUs."""

    def seconds(*settings: str) -> float:
        made = estimates(
            "owt-full", "sample.0.count=256", "sample.0.seeds=[0]", *settings, machine=EIGHT_GPUS
        )
        found = next(each.seconds for name, each in made.items() if name.startswith("sample-"))
        assert found is not None
        return found

    one, two, eight = (seconds(f"compute.sample.processes={number}") for number in (1, 2, 8))
    alone, launched = (start / EIGHT_GPUS.pace for start in (0.5, 9.5))
    assert two - launched == pytest.approx((one - alone) / 2)
    assert eight - launched == pytest.approx((one - alone) / 4)
    assert seconds("sample.0.precision=bf16") < one / 2


def test_an_encoder_beside_training_costs_its_passes_there() -> None:
    alone, beside = (
        estimates("wmt14-de-en", f"compute.train.source={source}", "train.precision=float32")["train"].seconds
        for source in ("store", "live")
    )
    assert alone is not None
    assert beside is not None
    assert beside > 1.01 * alone


def test_a_window_takes_disk_while_it_is_used() -> None:
    stored, rolling = (
        estimates("owt-full", f"compute.train.source={source}")["train"] for source in ("store", "rolling")
    )
    assert rolling.scratch - stored.scratch == 8 * 2**30
    few = estimates("tiny", "compute.train.source=rolling")["train"].scratch
    assert few < 8 * 2**20, "a window never holds more than all steps take"
    assert rolling.bytes == stored.bytes


def test_a_slow_disk_makes_encoding_wait() -> None:
    disk = DiskSpeed(write=1e6, read=1e6, measured="2026-11-30")
    slow = estimates("quickstart", machine=replace(TWO_CORES, disk=disk))["encode"]
    assert slow.bytes is not None
    assert slow.seconds == pytest.approx(slow.bytes / 1e6 + 1)


def test_bytes_are_sure_once_the_rows_are_there(tmp_path: Path) -> None:
    experiment = load_experiment("quickstart", Experiment, (), SHIPPED)
    plan = plan_experiment(experiment)

    def find(planned: Planned) -> Artifact | None:
        if planned.step.spec.name != "tokenize":
            return None
        return make_artifact(tmp_path / planned.step.name, "tokenize", key=planned.key, facts={"rows": 500})

    made = {each.planned.step.name: each for each in estimate_plan(plan, experiment, find, TWO_CORES)}
    assert made["encode"].sure
    assert made["encode"].bytes == 500 * (32 * 384 * 2 + 16)
    assert not made["fetch-judge"].sure
    assert not estimates("quickstart")["encode"].sure


def test_an_encoder_that_is_here_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/config.json").write_text(
        '{"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6}'
    )
    experiment = load_experiment("quickstart", Experiment, ("encode.expect_width=1",), SHIPPED)
    plan = plan_experiment(experiment)

    def find(planned: Planned) -> Artifact | None:
        if planned.step.name != "fetch-encoder":
            return None
        return make_artifact(tmp_path, "fetch", key=planned.key)

    made = {each.planned.step.name: each for each in estimate_plan(plan, experiment, find, TWO_CORES)}
    assert made["encode"].bytes == 6075 * (32 * 384 * 2 + 16)
    position = 4 * (2 * (4 * 384**2 + 2 * 384 * 1536) + 4 * 32 * 384)
    work = Work(6075 * 32 * position, 384, narrow=40)
    assert made["encode"].seconds == pytest.approx(TWO_CORES.seconds(work, Compute()) + 1)


def test_pairs_store_their_condition_once_and_their_target_twice() -> None:
    encode = estimates("wmt14-de-en")["encode"]
    assert encode.rows == 4_508_785
    assert encode.bytes == encode.rows * ((64 + 2 * 64) * 512 * 2 + 16)


def test_rows_are_cut_where_the_configuration_says() -> None:
    assert estimates("quickstart", "tokenize.rows=500")["tokenize"].rows == 500
    assert estimates("quickstart", "data.train.share=0.5")["tokenize"].rows == int(2.7e6 * 0.5 * 0.9) // 32


def test_unknown_sizes_stay_unknown_and_count_as_nothing() -> None:
    hidden = estimates("quickstart", "data.train.expect_tokens=null", "data.train.asset.expect_bytes=null")
    assert hidden["encode"].bytes is None
    assert total_bytes(hidden.values()).known < total_bytes(estimates("quickstart").values()).known


def test_a_key_shared_by_two_steps_costs_once() -> None:
    one = estimates("quickstart")["train"]
    assert total_bytes([one, one]).known == one.bytes
    assert total_seconds([one, one]).known == one.seconds


def test_what_is_there_costs_nothing() -> None:
    made = estimates("tiny")["train"]
    there = Estimate(made.planned, Artifact(Path(), None), None, None, 5, 0.0)  # type: ignore[arg-type]
    assert total_bytes([there]).known == 0
    assert Fingerprint(made.planned.key) == there.planned.key


def test_more_machine_takes_less_time() -> None:
    slow, fast = estimates("owt-full"), estimates("owt-full", machine=EIGHT_GPUS)
    assert total_seconds(fast.values()).known < total_seconds(slow.values()).known / 100


def test_scores_of_texts_that_are_there_have_a_cost(tmp_path: Path) -> None:
    """Samples and controls count texts, not rows."""
    experiment = load_experiment("quickstart", Experiment, (), SHIPPED)
    plan = plan_experiment(experiment)

    def find(planned: Planned) -> Artifact | None:
        stage = planned.step.spec.name
        if stage in ("evaluate", "report"):
            return None
        facts = {"texts": 64} if stage in ("sample", "control") else {"rows": 500}
        return make_artifact(tmp_path / planned.step.name, stage, key=planned.key, facts=facts)

    made = {each.planned.step.name: each for each in estimate_plan(plan, experiment, find, TWO_CORES)}
    assert made["sample-ode"].rows == made["evaluate-ode"].rows == 64
    assert made["evaluate-ode"].tokens == 64 * 32
    assert made["evaluate-ode"].seconds is not None


def test_a_corpus_of_ones_own_is_estimated_by_its_size(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("words and more words\n" * 10_000)
    own = [f"data.train.asset.uri=path:{tmp_path}/texts.txt", "data.train.asset.digest=null"]
    own += ["data.train.expect_tokens=null", "data.train.share=1.0", "data.holdout=0.5"]
    made = estimates("quickstart", *own)
    size = made["fetch-train"].bytes
    assert size == 210_000
    assert made["tokenize"].rows == pytest.approx(size / 4.5 / 2 / 32, rel=0.01)
    assert made["encode"].seconds is not None
