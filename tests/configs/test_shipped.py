"""What every shipped configuration must say and share."""

import re

import golden_keys
import pytest

from elf.pipeline.config import load_experiment, shipped_names
from elf.stages.config import Experiment
from elf.stages.experiment import plan_experiment

NAMES = shipped_names(golden_keys.SHIPPED)


def keys(name: str, *settings: str) -> dict[str, str]:
    plan = plan_experiment(load_experiment(name, Experiment, settings, golden_keys.SHIPPED))
    return {each.step.name: each.key for each in plan}


def changed(name: str, *settings: str) -> set[str]:
    """Stages of which a step gets another key by ``settings``."""
    before, after = keys(name), keys(name, *settings)
    return {step.split("-")[0] for step in before if before[step] != after[step]}


def test_the_promised_configurations_are_there() -> None:
    promised = (
        "cpu-hour de-en owt-L owt-M owt-frontier owt-full owt-pd quickstart quickstart-t5 summ tiny tiny-pd "
        "wmt14-de-en xsum"
    )
    assert promised.split() == NAMES


def test_the_frontier_is_of_the_model_of_owt_full() -> None:
    swept, full = keys("owt-frontier"), keys("owt-full")
    assert swept["train"] == full["train"]
    assert swept["sample-sde-guidance=3"] == full["sample-sde-64"]


@pytest.mark.parametrize(("distilled", "teacher"), [("tiny-pd", "tiny"), ("owt-pd", "owt-full")])
def test_what_is_distilled_is_the_model_of_another_configuration(distilled: str, teacher: str) -> None:
    rounds, whole = keys(distilled), keys(teacher)
    assert rounds["train"] == whole["train"]
    assert changed(distilled, "distill.seed=1") == {"distill", "sample", "evaluate", "report"}


@pytest.mark.parametrize("name", NAMES)
def test_each_opens_with_its_command_its_cost_and_its_aim(name: str) -> None:
    text = (golden_keys.SHIPPED / f"{name}.yaml").read_text(encoding="utf-8")
    head = text[: text.index("\n\n")]
    assert all(line.startswith("#") for line in head.splitlines())
    assert head.startswith(f"# elf run {name}")
    assert "time and cost" in head
    assert "aims at" in head
    assert re.search(r"^# (cannot show|not run here)", head, re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_assets_from_outside_are_pinned(name: str) -> None:
    for asset in golden_keys.fetched(golden_keys.plan_shipped(name)):
        assert golden_keys.is_pinned(asset), asset.source


@pytest.mark.parametrize("setting", ["train.latents.std=0.3", "train.model.depth=3", "train.seed=7"])
@pytest.mark.parametrize("name", ["quickstart", "tiny"])
def test_training_settings_rebuild_nothing_before_training(name: str, setting: str) -> None:
    assert changed(name, setting) == {"train", "sample", "evaluate", "report"}


def test_another_layer_rebuilds_from_encode_on() -> None:
    assert changed("quickstart", "encode.layer=5") == {"encode", "train", "sample", "evaluate", "report"}


def test_another_encoder_rebuilds_what_reads_it() -> None:
    other = "encode.encoder.digest=sha256:" + "1" * 64
    assert "fetch" in changed("quickstart", other)


@pytest.mark.parametrize(
    "setting",
    ["compute.encode.batch_tokens=100", "compute.train.threads=1", "train.save_every=7", "name=other"],
)
def test_how_and_where_a_run_works_rebuilds_nothing(setting: str) -> None:
    assert changed("tiny", setting) - {"report"} == set()


def test_sizes_share_one_encode() -> None:
    full, medium, large = (keys(name) for name in ("owt-full", "owt-M", "owt-L"))
    assert full["encode"] == medium["encode"] == large["encode"]
    assert len({full["train"], medium["train"], large["train"]}) == 3


def test_evaluations_of_one_judge_share_its_artifact() -> None:
    plan = golden_keys.plan_shipped("quickstart")
    assert len({each.key for each in plan if each.step.name == "fetch-judge"}) == 1
    assert keys("quickstart")["fetch-judge"] == keys("cpu-hour")["fetch-judge"]
