"""One entry of `sample` that stands for many settings: their names, their keys, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from elf.pipeline.config import load_experiment
from elf.pipeline.errors import Misconfigured
from elf.stages.config import Experiment
from elf.stages.experiment import plan_experiment

SHIPPED = Path(__file__).parents[2] / "configs"


def load(folder: Path, *entries: dict[str, Any], overrides: tuple[str, ...] = ()) -> Experiment:
    """`tiny` with these sampling settings."""
    file = folder / "swept.yaml"
    file.write_text(f"extends: tiny\nsample: {json.dumps(entries)}\n")
    return load_experiment(str(file), Experiment, overrides, SHIPPED)


def keys(experiment: Experiment) -> dict[str, str]:
    return {each.step.name: each.key for each in plan_experiment(experiment)}


SWEPT = {"name": "sde", "count": 8, "over": {"guidance": [1, 2.5], "gamma": [0.5], "steps": [16, 32]}}


def test_every_combination_is_a_setting_named_by_what_is_swept(tmp_path: Path):
    experiment = load(tmp_path, {"name": "ode", "method": "ode"}, SWEPT)
    assert [setting.name for setting in experiment.sample] == [
        "ode",
        "sde-steps=16-guidance=1-gamma=0.5",
        "sde-steps=16-guidance=2.5-gamma=0.5",
        "sde-steps=32-guidance=1-gamma=0.5",
        "sde-steps=32-guidance=2.5-gamma=0.5",
    ]
    assert all(setting.count == 8 and setting.over is None for setting in experiment.sample[1:])


def test_keys_are_those_of_the_settings_written_one_by_one(tmp_path: Path):
    swept = load(tmp_path, SWEPT)
    written = [
        {
            "name": setting.name, "count": 8,
            "steps": setting.steps, "guidance": setting.guidance, "gamma": setting.gamma,
        }
        for setting in swept.sample
    ]  # fmt: skip
    assert keys(swept) == keys(load(tmp_path, *written))


def test_the_resolved_configuration_reads_back_as_the_same_settings(tmp_path: Path):
    swept = load(tmp_path, SWEPT)
    resolved = swept.model_dump(mode="json")
    assert [entry["over"] for entry in resolved["sample"]] == [None] * 4
    assert keys(Experiment.model_validate_json(json.dumps(resolved))) == keys(swept)


def test_a_list_takes_the_place_of_a_value_from_the_command_line_too(tmp_path: Path):
    experiment = load(
        tmp_path,
        {"name": "sde", "guidance": 7},
        overrides=("sample.0.over.guidance=[1, 2]", "sample.0.steps=3"),
    )
    assert [(each.name, each.guidance, each.steps) for each in experiment.sample] == [
        ("sde-guidance=1", 1.0, 3),
        ("sde-guidance=2", 2.0, 3),
    ]


def test_messages_name_the_place_in_the_file(tmp_path: Path):
    plan = plan_experiment(load(tmp_path, {"name": "ode", "method": "ode"}, SWEPT))
    step = plan["sample-sde-steps=32-guidance=1-gamma=0.5"].step
    assert step.place_of("guidance") == "sample.1.over.guidance"
    assert step.place_of("count") == "sample.1.count"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"over": {"guidence": [1]}}, "sample.0.over has no `guidence`; did you mean `guidance`?"),
        ({"over": {"guidance": [1, -2]}}, "`sample.0.over.guidance.1` is -2 .*greater than or equal to 0"),
        ({"over": {"steps": [8, 0]}}, "`sample.0.over.steps.1` is 0 .*greater than or equal to 1"),
        ({"over": {"method": ["sde", "odf"]}}, "'ode', 'sde', 'autoregressive' or 'masked'"),
        ({"over": {"guidance": [1, 1.0]}}, "a value stands in it twice"),
        ({"over": {"guidance": []}}, "it is empty"),
        ({"over": {}}, "`over` is empty; give it lists of method, steps"),
        ({"over": {"method": ["ode", "sde"], "gamma": [1]}}, "an ODE has no use for `gamma`"),
        ({"over": {"steps": [*range(1, 12)], "guidance": [*range(10)]}}, "110 sampling settings.*100 are the most"),
        ({"name": "x" * 190, "over": {"guidance": [1]}}, "not be longer than 200 bytes"),
        ({"name": "real"}, "`real` has the name of a control"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(tmp_path: Path, entry: dict[str, Any], said: str):
    with pytest.raises(Misconfigured, match=said):
        load(tmp_path, {"name": "sde", **entry})


def test_a_product_that_nobody_could_write_out_is_refused_at_once(tmp_path: Path):
    huge = {name: [*range(1, 31)] for name in ("steps", "guidance", "gamma", "input_guidance")}
    with pytest.raises(Misconfigured, match="810,000 sampling settings"):
        load(tmp_path, {"name": "sde", "over": huge})


def test_a_swept_name_is_as_much_taken_as_a_written_one(tmp_path: Path):
    with pytest.raises(Misconfigured, match="share a name"):
        load(tmp_path, {"name": "sde", "over": {"steps": [8]}}, {"name": "sde-steps=8"})
