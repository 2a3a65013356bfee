"""What a plan says it will cost, against counts made by hand and against measured figures."""

from pathlib import Path

import pytest
from judging import make_artifact

from elf.cache.manifest import Fingerprint
from elf.cache.store import Artifact
from elf.pipeline.config import load_experiment
from elf.pipeline.plan import Planned
from elf.stages.config import Experiment
from elf.stages.estimate import Estimate, Machine, estimate_plan, this_machine, total_bytes, total_seconds
from elf.stages.experiment import plan_experiment

SHIPPED = Path(__file__).parent.parent.parent / "configs"
TWO_CORES = Machine(cores=2, gpus=0)


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
    assert train.bytes / 16 == pytest.approx(105e6, rel=0.03)


def test_training_flops_are_those_of_the_reduced_step() -> None:
    # 743 MFLOP a token for ELF-B at 1024: 3.4 trunk forwards and 0.6 heads.
    train = estimates("owt-full", "train.steps=100", "train.epochs=null", machine=Machine(1, 1))["train"]
    assert train.seconds is not None
    assert train.seconds - 10 == pytest.approx(100 * 512 * 1024 * 743e6 / 200e12, rel=0.03)


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
    assert total_bytes(hidden.values()) < total_bytes(estimates("quickstart").values())


def test_a_key_shared_by_two_steps_costs_once() -> None:
    one = estimates("quickstart")["train"]
    assert total_bytes([one, one]) == one.bytes
    assert total_seconds([one, one]) == one.seconds


def test_what_is_there_costs_nothing() -> None:
    made = estimates("tiny")["train"]
    there = Estimate(made.planned, Artifact(Path(), None), None, 5, 0.0)  # type: ignore[arg-type]
    assert total_bytes([there]) == 0
    assert Fingerprint(made.planned.key) == there.planned.key


def test_more_machine_takes_less_time() -> None:
    slow, fast = estimates("owt-full"), estimates("owt-full", machine=Machine(64, 8))
    assert total_seconds(fast.values()) < total_seconds(slow.values()) / 100


def test_this_machine_has_a_core() -> None:
    assert this_machine().cores >= 1
    assert str(Machine(2, 0)) == "2 CPU cores, no GPU"
    assert str(Machine(1, 8)) == "1 CPU core, 8 GPUs"


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
    assert (made["evaluate-ode"].seconds or 0) > 1


def test_a_corpus_of_ones_own_is_estimated_by_its_size(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("words and more words\n" * 10_000)
    own = [f"data.train.asset.uri=path:{tmp_path}/texts.txt", "data.train.asset.digest=null"]
    own += ["data.train.expect_tokens=null", "data.train.share=1.0", "data.holdout=0.5"]
    made = estimates("quickstart", *own)
    size = made["fetch-train"].bytes
    assert size == 210_000
    assert made["tokenize"].rows == pytest.approx(size / 4.5 / 2 / 32, rel=0.01)
    assert made["encode"].seconds is not None
