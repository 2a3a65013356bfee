"""No key of a shipped configuration changes unless somebody means it to."""

from typing import Any

import golden_keys
import pytest

from elf.pipeline.config import shipped_names
from elf.pipeline.plan import Plan
from elf.pipeline.section import differences

CURE = (
    "If the bytes of these stages really change, bump their versions; then record the keys anew with "
    "`python tests/support/golden_keys.py` and say so in CHANGELOG.md."
)


def changes(plan: Plan, recorded: dict[str, dict[str, Any]]) -> list[str]:
    """One line per setting that changed a key, named as in the configuration; what follows from it is left out."""
    lines = [f"{step}: no longer planned" for step in recorded if step not in plan.names()]
    for each in plan:
        before = recorded.get(each.step.name)
        if before is None:
            lines.append(f"{each.step.name}: a new step")
            continue
        for path, old, new in differences(before["payload"], dict(each.payload)):
            if not path.startswith("inputs.") or "(absent)" in (old, new):
                place = each.step.place_of(path.removeprefix("identity."))
                lines.append(f"{each.step.name}: {place}: {old!r} → {new!r}")
    return lines


@pytest.mark.parametrize("name", shipped_names(golden_keys.SHIPPED))
def test_keys_are_the_recorded_ones(name: str) -> None:
    plan = golden_keys.plan_shipped(name)
    recorded = golden_keys.read_recorded()
    assert name in recorded, f"{name} has no recorded keys. {CURE}"
    told = changes(plan, recorded[name])
    assert not told, "\n  ".join([f"keys of {name} changed:", *told, CURE])
    assert golden_keys.keys_of(plan) == recorded[name]


def test_a_change_would_be_named_by_its_place_in_the_configuration() -> None:
    recorded = golden_keys.read_recorded()["tiny"]
    recorded["train"]["payload"]["identity"]["latents"]["std"] = 0.3
    recorded["train"]["key"] = "another"
    assert changes(golden_keys.plan_shipped("tiny"), recorded) == [
        "train: train.latents.std: 0.3 → 'measured'"
    ]


def test_nothing_recorded_is_of_a_configuration_that_is_gone() -> None:
    assert list(golden_keys.read_recorded()) == shipped_names(golden_keys.SHIPPED)
