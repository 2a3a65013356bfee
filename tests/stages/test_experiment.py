"""From settings to keys: what changes bytes changes a key, what does not does not, and no further than it must."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from elf.pipeline.plan import Plan
from elf.pipeline.section import LINKED, RUNTIME
from elf.stages.config import Experiment, Sample
from elf.stages.experiment import plan_experiment


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    """A small experiment over local files."""
    (tmp_path / "texts.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    for name in ("encoder", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(name.encode())
    return {
        "name": "toy",
        "data": {"train": {"asset": {"uri": f"path:{tmp_path}/texts.jsonl"}}, "holdout": 0.5},
        "tokenize": {"length": 16},
        "encode": {"encoder": {"uri": f"path:{tmp_path}/encoder"}},
        "train": {"model": {"size": "B"}, "steps": 5},
        "sample": [{"name": "ode", "method": "ode"}],
    }


def planned(settings: dict[str, Any], **changes: Any) -> Plan:
    """The plan of the settings with ``section__key=value`` changes."""
    copy = json.loads(json.dumps(settings))
    for path, value in changes.items():
        *parents, last = path.split("__")
        here = copy
        for parent in parents:
            here = here.setdefault(parent, {})
        here[last] = value
    return plan_experiment(Experiment.model_validate_json(json.dumps(copy)))


def test_whatever_changes_the_states_changes_the_key_of_encode(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"encode__encoder": {"uri": f"path:{tmp_path}/other"}},
        {"encode__dtype": "bfloat16"},
        {"encode__compute": "bfloat16"},
        {"encode__layer": 3},
        {"encode__views": ["target"]},
        {"tokenize__length": 32},
        {"tokenize__remainder": "pad"},
    ]
    keys = {planned(settings, **change)["encode"].key for change in changes}
    assert len(keys) == len(changes)
    (tmp_path / "encoder" / "model.safetensors").write_bytes(b"encodEr")
    assert planned(settings)["encode"].key not in keys, "other weights under the same name"


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 10**23])
def test_a_seed_that_torch_does_not_take_is_refused_at_once(settings: dict[str, Any], seed: int) -> None:
    with pytest.raises(ValidationError, match=r"train\.seed"):
        planned(settings, train__seed=seed)


@pytest.mark.parametrize("setting", ["padding_side", "pad_side", "mask", "max_length"])
def test_what_an_encode_cannot_vary_cannot_be_asked_for(settings: dict[str, Any], setting: str) -> None:
    with pytest.raises(ValidationError, match=rf"encode\.{setting}"):
        planned(settings, **{f"encode__{setting}": "left"})


CHANGED: dict[str, Any] = {
    "method": "sde", "steps": 7, "grid": "uniform", "guidance": 2.0, "gamma": 0.5, "input_guidance": 2.0,
    "sde_form": "paper", "weights": "raw", "precision": "bf16", "count": 9, "seeds": [4], "split": "test",
    "trajectories": 3,
}  # fmt: skip
OF_BASELINES = {"temperature": 0.5, "top_p": 0.9}
WRITTEN_OUT = {"over"}
"""Settings that are gone once the configuration is read."""


def test_whatever_makes_other_texts_changes_their_key_and_that_of_their_scores(
    settings: dict[str, Any],
) -> None:
    named = {
        name for name, field in Sample.model_fields.items() if not {RUNTIME, LINKED} & {*field.metadata}
    } - WRITTEN_OUT
    assert named == {*CHANGED, *OF_BASELINES}
    base = planned(settings)
    for name, value in CHANGED.items():
        other = planned(settings, sample=[settings["sample"][0] | {name: value}])
        for step in ("sample-ode", "evaluate-ode"):
            assert other[step].key != base[step].key, f"{name} {step}"
        assert other["train"].key == base["train"].key
    settings["train"]["method"], plain = "masked", {"name": "plain", "method": "masked"}
    base = planned(settings, sample=[plain])
    for name, value in OF_BASELINES.items():
        other = planned(settings, sample=[plain | {name: value}])
        for step in ("sample-plain", "evaluate-plain"):
            assert other[step].key != base[step].key, f"{name} {step}"


def test_how_it_is_computed_changes_no_key(settings: dict[str, Any]) -> None:
    base = planned(settings)
    stages = ("fetch", "tokenize", "encode", "train", "sample", "control", "evaluate", "report")
    for knob in ({"batch_tokens": 7}, {"workers": 3}, {"threads": 2}, {"device": "cpu"}, {"batch": 5}):
        other = planned(settings, compute=dict.fromkeys(stages, knob))
        assert [each.key for each in base] == [each.key for each in other]


@pytest.mark.parametrize(
    ("change", "first"),
    [
        ({"train__latents": {"std": 0.3}}, "train"),
        ({"train__seed": 4}, "train"),
        ({"train__model": {"size": "M"}}, "train"),
        ({"train__save_every": 7}, None),
        ({"encode__dtype": "float32"}, "encode"),
        ({"sample": [{"name": "ode", "method": "ode", "steps": 9}]}, "sample-ode"),
        ({"sample": [{"name": "renamed", "method": "ode"}]}, None),
        ({"report__title": "other"}, "report"),
    ],
)
def test_a_change_reaches_what_lies_downstream_only(
    settings: dict[str, Any], change: dict[str, Any], first: str | None
) -> None:
    base, other = planned(settings), planned(settings, **change)
    kept = {each.key for each in base}
    changed = [each.step.name for each in other if each.key not in kept]
    if first is None:
        assert [name for name in changed if name != "report"] == []
    else:
        assert changed[0] == first
        same = set(other.select(other[first].step.spec.name))
        assert set(changed) <= {name for name in other.names() if same & set(other.upstream([name]))}


def test_local_files_are_known_by_their_bytes(settings: dict[str, Any], tmp_path: Path) -> None:
    text = tmp_path / "texts.jsonl"
    before, status = planned(settings), text.stat()
    text.write_text(text.read_text().replace("one", "six"))

    os.utime(text, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert text.stat().st_size == status.st_size
    assert planned(settings)["tokenize"].key != before["tokenize"].key
    text.write_text(text.read_text().replace("six", "one"))
    moved = tmp_path / "elsewhere.jsonl"
    text.rename(moved)
    assert (
        planned(settings, data__train={"asset": {"uri": f"path:{moved}"}})["encode"].key
        == before["encode"].key
    )


def test_both_splits_come_from_one_corpus_and_one_encoder(settings: dict[str, Any]) -> None:
    plan = planned(settings, train__heldout={"every": 5})
    assert {"encode", "encode-validation", "tokenize-validation"} <= set(plan.names())
    assert plan["tokenize"].input_keys["documents"] == plan["tokenize-validation"].input_keys["documents"]
    assert plan["tokenize"].key != plan["tokenize-validation"].key
    assert "vocabulary" not in plan["tokenize-validation"].input_keys
    used = planned(settings, tokenize__vocabulary="used")
    assert used["tokenize-validation"].input_keys["vocabulary"] == used["tokenize"].key


def test_only_splits_that_somebody_reads_are_encoded(settings: dict[str, Any]) -> None:
    plain = planned(settings)
    assert [name for name in plain.names() if name.startswith("encode")] == ["encode"]
    assert "tokenize-validation" in plain.names()


def test_weights_from_outside_take_the_place_of_training(settings: dict[str, Any], tmp_path: Path) -> None:
    trained, file = planned(settings), tmp_path / "elf.pt"
    file.write_bytes(b"weights")
    plan = planned(settings, weights={"asset": {"uri": f"path:{file}"}})
    assert plan["train"].step.spec.name == "weights"
    assert plan["train"].input_keys["checkpoint"] == plan["fetch-weights"].key
    assert plan["train"].input_keys["tokenizer"] == plan["tokenize"].input_keys["tokenizer"]
    assert not [name for name in plan.names() if name.startswith("encode")]
    assert plan["tokenize"].key == trained["tokenize"].key
    assert plan["sample-ode"].key != trained["sample-ode"].key
    assert list(plan.select("weights")) == ["train"]
    file.write_bytes(b"others!")
    assert planned(settings, weights={"asset": {"uri": f"path:{file}"}})["train"].key != plan["train"].key
