"""Every ablation that is shipped: planned whole, pinned, and sharing with its base what it does not vary."""

from functools import cache
from pathlib import Path

import golden_keys
import pytest

from elf.pipeline.config import find_config, load_experiment
from elf.pipeline.errors import Misconfigured
from elf.pipeline.plan import Plan
from elf.stages.config import Experiment
from elf.stages.experiment import plan_experiment

FOLDER = golden_keys.SHIPPED / "ablations"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(name: str, *settings: str) -> Experiment:
    return load_experiment(f"ablations/{name}", Experiment, settings, golden_keys.SHIPPED)


@cache
def plans(name: str) -> dict[str, Plan]:
    """By variant; of one that varies its samplers only, the one plan."""
    whole = load(name)
    if whole.sweep is None:
        return {"": plan_experiment(whole)}
    return {
        variant.name: plan_experiment(load(name, "sweep=null", *variant.overrides))
        for variant in whole.sweep.combinations()
    }


def test_the_ablations_of_the_paper_are_there() -> None:
    promised = (
        "baselines bottleneck conditioning decoder denoise-share embeddings input-guidance optimiser prediction "
        "self-conditioning size"
    )
    assert promised.split() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_opens_with_its_command_and_what_varies(name: str) -> None:
    head = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").partition("\n\n")[0]
    command = "run" if load(name).sweep is None else "sweep"
    assert head.startswith(f"# elf {command} ablations/{name} ")
    for words in ("what varies", "time and cost", "not run here"):
        assert f"\n# {words}" in head


@pytest.mark.parametrize("name", NAMES)
def test_each_variant_is_planned_and_trains_something_else(name: str) -> None:
    made = plans(name)
    if len(made) > 1:
        assert len({plan["train"].key for plan in made.values()}) == len(made)
    for plan in made.values():
        assert "report" in plan.names()
        for asset in golden_keys.fetched(plan):
            assert golden_keys.is_pinned(asset), asset.source


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name not in ("prediction", "embeddings", "baselines")]
)
def test_one_encode_serves_all_variants(name: str) -> None:
    base = "wmt14-de-en" if name == "input-guidance" else "owt-full"
    encoded = plan_experiment(load_experiment(base, Experiment, [], golden_keys.SHIPPED))["encode"].key
    assert {plan["encode"].key for plan in plans(name).values()} == {encoded}


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("baselines", "flow"),
        ("bottleneck", "bottleneck=128"),
        ("conditioning", "conditioning=prefix"),
        ("denoise-share", "decode_share=0.2"),
        ("prediction", "t5-small-prediction=x"),
        ("embeddings", "t5-small"),
        ("size", "B"),
    ],
)
def test_the_published_setting_is_one_of_them_and_is_not_trained_twice(name: str, variant: str) -> None:
    full = plan_experiment(load_experiment("owt-full", Experiment, [], golden_keys.SHIPPED))
    assert plans(name)[variant]["train"].key == full["train"].key


def test_baselines_share_the_tokens_and_make_no_latents() -> None:
    made = plans("baselines")
    assert len({plan["tokenize"].key for plan in made.values()}) == 1
    assert "encode" in made["flow"].names()
    for name in ("autoregressive", "masked"):
        assert not any(step.startswith("encode") for step in made[name].names())
        assert sorted(made[name]["train"].step.inputs) == ["heldout_tokens", "tokens"]
        flow, baseline = made["flow"]["train"].step.section, made[name]["train"].step.section
        assert baseline == flow.model_copy(update={"method": name}), "of equal size, on equal data"


def test_they_go_by_the_name_of_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config("ablations/size", golden_keys.SHIPPED) == FOLDER / "size.yaml"
    for wrong in ("ablations/sise", "../configs/tiny", "ablations/../tiny"):
        with pytest.raises(Misconfigured):
            find_config(wrong, golden_keys.SHIPPED)
