"""The baselines in the graph: trained on tokens alone, refused what only a flow has, priced."""

import json
from pathlib import Path
from typing import Any

import pytest

from elf.pipeline.config import load_experiment
from elf.pipeline.errors import Misconfigured
from elf.pipeline.plan import Planned
from elf.stages.config import Experiment
from elf.stages.estimate import Estimator
from elf.stages.experiment import plan_experiment
from elf.stages.machine import Machine, reference
from elf.stages.sources import settle

SHIPPED = Path(__file__).parents[2] / "configs"
PLAIN = [{"name": "plain", "method": "autoregressive"}]


def load(
    *settings: str, base: str = "owt-full", sample: Any = PLAIN, method: str = "autoregressive"
) -> Experiment:
    given = [f"train.method={method}", f"sample={json.dumps(sample)}", *settings]
    return load_experiment(base, Experiment, given, SHIPPED)


@pytest.mark.parametrize("base", ["owt-full", "tiny"])
def test_no_encode_is_planned_nor_an_encoder_brought_that_nobody_asks(base: str) -> None:
    back = ("train.latents.std=0.2", "train.model.bottleneck=128") if base == "tiny" else ()
    plan = plan_experiment(load(*back, base=base))
    assert not {"encode", "encode-validation", "pretrain"} & set(plan.names())
    assert sorted(plan["train"].step.inputs) == ["heldout_tokens", "tokens"]
    assert "latents" not in plan["report"].step.inputs
    assert ("fetch-encoder" in plan.names()) == (base == "owt-full"), "only where it brings the tokenizer"


def test_with_a_tokenizer_of_its_own_no_encoder_is_fetched() -> None:
    own = 'tokenize.tokenizer={uri: "hub:google-t5/t5-small@df1b051c49625cf57a3d0d8d3863ed4d13564fe4"}'
    assert "fetch-encoder" not in plan_experiment(load(own)).names()


def test_pairs_are_sampled_from_their_tokens() -> None:
    setting = [{"name": "plain", "method": "autoregressive", "temperature": 0.0}]
    plan = plan_experiment(load("train.objective={}", base="wmt14-de-en", sample=setting))
    assert sorted(plan["sample-plain"].step.inputs) == ["model", "tokens"]


def test_nothing_is_chosen_for_latents_that_are_not_there() -> None:
    experiment = load()
    plan = plan_experiment(experiment)
    settled, choice = settle(plan, experiment, lambda planned: None, lambda planned: 0)
    assert choice is None
    assert [each.key for each in settled] == [each.key for each in plan]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["train.latents.std=measured"], r"no use for train\.latents\.std; .* train\.latents\.std=0\.2"),
        (
            ["train.model.prediction=v", "train.objective.decode_share=0.5", "train.model.bottleneck=null"],
            r"no use for train\.model\.bottleneck, train\.model\.prediction, train\.objective\.decode_share; ",
        ),
        (["distill={steps: 5}"], "`distill` is of flows of an encoder's states"),
        (["weights={asset: {uri: 'path:w.pt'}}"], "`weights` is of flows of an encoder's states"),
        (
            ["train.method=masked"],
            "`plain` has `method: autoregressive`, and the model is of `train.method: masked`",
        ),
        (["train.method=flow"], "give the setting `method: ode` or `sde`"),
        (
            ["sample.0.method=sde"],
            "`plain` has `method: sde`, and the model is of `train.method: autoregressive`",
        ),
        (["sample.0.steps=9"], "`method: autoregressive` has no use for `steps`"),
        (
            ["sample.0.guidance=2", "sample.0.trajectories=1"],
            "no use for `guidance`, `trajectories`; leave them out",
        ),
        (["sample.0.over={gamma: [1, 2]}"], "no use for `gamma`|an ODE has no use"),
        (["sample.0.top_p=0"], r"sample\.0\.top_p"),
        (
            ["train.method=flow", "sample.0.method=ode", "sample.0.top_p=0.5"],
            "`method: ode` has no use for `top_p`",
        ),
    ],
)
def test_what_only_others_have_is_refused(settings: list[str], words: str) -> None:
    with pytest.raises(Misconfigured, match=words):
        load(*settings)


def test_a_masked_model_is_swept_over_its_steps() -> None:
    swept = [{"name": "m", "method": "masked", "over": {"steps": [4, 8], "temperature": [0.5, 1]}}]
    names = [setting.name for setting in load(sample=swept, method="masked").sample]
    assert names[0] == "m-steps=4-temperature=0.5"
    assert len(names) == 4


def test_a_baseline_has_as_many_weights_and_operations_as_the_flow_and_pays_for_no_latents() -> None:
    machine = Machine(2, 0, reference(2), memory=8 * 10**9)
    made: dict[str, dict[str, Any]] = {}
    for method in ("flow", "autoregressive", "masked"):
        setting = {"name": "one", "method": "ode" if method == "flow" else method}
        experiment = load("train.steps=100", "train.epochs=null", method=method, sample=[setting])
        plan, work = plan_experiment(experiment), Estimator(experiment, machine)

        def absent(planned: Planned) -> None:
            return None

        made[method] = {each.planned.step.name: each for each in work.walk(plan, absent)}
        speed = work.training_speed(plan["train"])
        assert speed is not None
        assert 0 < speed.mfu < 1
    assert made["autoregressive"]["train"].bytes / 12 == pytest.approx(109.7e6, rel=0.01)
    for method in ("autoregressive", "masked"):
        assert made[method]["train"].seconds == pytest.approx(made["flow"]["train"].seconds, rel=0.3)
        assert made[method]["train"].bytes == pytest.approx(made["flow"]["train"].bytes, rel=0.06)
        assert all(each.seconds is not None for each in made[method].values())
