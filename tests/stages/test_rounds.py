"""A distillation as it is planned, priced and reported: a chain of rounds, each an artifact."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_training import finish

from elf.pipeline.config import load_experiment
from elf.pipeline.errors import Misconfigured
from elf.pipeline.plan import Plan, Planned, Tie
from elf.stages.compute import TrainCompute
from elf.stages.config import Experiment
from elf.stages.estimate import estimate_plan
from elf.stages.experiment import plan_experiment
from elf.stages.machine import this_machine
from elf.stages.rounds import read_rounds
from elf.stages.sources import settle

CONFIGS = Path(__file__).resolve().parent.parent.parent / "configs"


def experiment(*settings: str) -> Experiment:
    return load_experiment("tiny-pd", Experiment, list(settings), CONFIGS)


def plan(*settings: str) -> Plan:
    return plan_experiment(experiment(*settings))


def nothing(planned: Planned) -> None:
    return None


def test_each_round_starts_from_the_one_before_and_learns_from_the_first() -> None:
    inputs = {
        name: dict(each.step.inputs) for each in plan() if (name := each.step.name).startswith("distill")
    }
    assert list(inputs) == ["distill-8", "distill-4", "distill-2", "distill-1"]
    assert [each["start"] for each in inputs.values()] == ["train", "distill-8", "distill-4", "distill-2"]
    assert {each["teacher"] for each in inputs.values()} == {"train"}
    assert {each["heldout_latents"] for each in inputs.values()} == {"encode-validation"}
    sections = [plan()[name].step.section.model_dump() for name in inputs]
    assert [(each["student_steps"], each["span_steps"]) for each in sections] == [
        (8, 2),
        (4, 4),
        (2, 8),
        (1, 16),
    ]
    assert plan()["sample-pd-4"].step.inputs["model"] == "distill-4"


def test_rounds_at_the_end_may_go_and_the_others_stay() -> None:
    whole, shorter = plan(), plan("distill.rounds=[8, 4]", "sample=[]")
    for name in ("train", "distill-8", "distill-4"):
        assert whole[name].key == shorter[name].key
    other = plan("distill.rounds=[4, 2, 1]")
    assert whole["distill-4"].key != other["distill-4"].key, "it started from another"


def test_what_a_setting_of_a_sampler_takes_is_in_its_key_by_its_input() -> None:
    settings = ["sample.0.steps=4", "sample.1.steps=4"]
    one, other = (plan(*settings)[name] for name in ("sample-pd-4", "sample-pd-1"))
    assert one.payload["identity"] == other.payload["identity"]
    assert one.key != other.key


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["distill.rounds=[8, 8]"], "each student takes fewer steps than the one before"),
        (["distill.rounds=[4, 8]"], "each student takes fewer steps than the one before"),
        (["distill.rounds=[8, 3]"], "`teacher_steps` .16. must be a multiple .* 3 does not divide it"),
        (["distill.rounds=[]"], "distill.rounds"),
        (["sample.0.student=3"], "takes the student of 3 steps, and `distill.rounds` has 8, 4, 2, 1"),
        (["distill=null"], "takes the student of 4 steps, and there is no `distill`"),
        (["distill.epochs=1"], "give the length of training once"),
    ],
)
def test_rounds_that_make_no_sense_are_refused(settings: list[str], words: str) -> None:
    with pytest.raises(Misconfigured, match=words):
        experiment(*settings)


def test_rounds_run_as_training_does_unless_told_otherwise() -> None:
    own = plan("compute.distill.threads=2")
    assert plan()["distill-8"].step.compute.threads == plan()["train"].step.compute.threads == 1
    assert own["distill-8"].step.compute.threads == 2
    assert isinstance(own["distill-8"].step.compute, TrainCompute)
    assert own["distill-8"].key == plan()["distill-8"].key


def test_rounds_take_their_latents_from_where_training_does() -> None:
    asked = experiment("compute.train.source=live", "train.latents.std=1.0")
    settled, choice = settle(plan_experiment(asked), asked, nothing, lambda planned: 10**12)
    assert choice is not None
    assert choice.source == "live"
    for name in ("train", "distill-8", "distill-1"):
        assert settled[name].step.tie("latents") is Tie.INLINE
    assert "encode" in settled.spared()


def test_a_distillation_of_trained_weights_chooses_for_itself(tmp_path: Path) -> None:
    asked = experiment("compute.train.source=live")
    artifact = finish(_folder(tmp_path / "trained"), "train", {}, {})
    settled, choice = settle(
        plan_experiment(asked),
        asked,
        lambda planned: artifact if planned.step.name == "train" else None,
        lambda planned: 10**12,
    )
    assert choice is not None
    assert choice.source == "live", "only train.latents.std: measured would take a store"
    assert settled["distill-8"].step.tie("latents") is Tie.INLINE


def test_a_round_costs_what_its_teacher_does() -> None:
    machine = replace(this_machine(), disk=None)
    asked = experiment("distill.batch=64", "distill.steps=2000", "train.batch=64", "train.steps=2000")
    found = {
        each.planned.step.name: each
        for each in estimate_plan(plan_experiment(asked), asked, nothing, machine)
    }
    names = ("train", "distill-8", "distill-4", "distill-2", "distill-1")
    seconds = [each for name in names if (each := found[name].seconds) is not None]
    assert len(seconds) == len(names)
    assert seconds == sorted(seconds), "the longer the span, the more calls of the teacher"
    assert seconds[-1] > 2 * seconds[1]
    assert found["distill-4"].bytes == found["train"].bytes


def test_the_page_says_what_each_round_came_to(tmp_path: Path) -> None:
    told = {
        steps: finish(_folder(tmp_path / str(steps)), "distill", facts(steps, heldout), {})
        for steps, heldout in ((1, False), (4, True))
    }
    first, last = read_rounds({f"distilled/{steps}": each for steps, each in told.items()})
    assert (first.student, first.span_steps, first.error, first.alone) == ("4 steps", 4, "0.25", "0.5")
    assert (last.student, last.error, last.alone, last.ce) == ("1 step", "–", "–", "–")


def facts(steps: int, heldout: bool) -> dict[str, Any]:
    measured = {"heldout_l2": 0.25, "heldout_ce": 3.0}
    return {
        "student_steps": steps,
        "span_steps": 16 // steps,
        "steps": 12,
        "teacher_rows": 400,
        "heldout": measured if heldout else None,
        "teacher_alone": {"loss": 1.0, "ce": 3.1, "l2": 0.5} if heldout else None,
    }


def _folder(path: Path) -> Path:
    path.mkdir()
    (path / "model.json").write_text("{}")
    return path
