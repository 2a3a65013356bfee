"""What a step was expected to cost lies beside what it made, and changes neither its key nor its content."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from toy_stages import Count, Recorder, toy_plan

from elf.cache.manifest import JSON
from elf.cache.store import Store
from elf.pipeline.errors import Failed
from elf.pipeline.forecast import FILE, keep_forecast, read_forecast
from elf.pipeline.plan import Plan
from elf.pipeline.progress import LineProgress
from elf.pipeline.runner import materialise


def forecast(plan: Plan, said: Mapping[str, JSON]) -> Plan:
    return Plan(replace(each.step, forecast=said) for each in plan)


def test_it_changes_no_key() -> None:
    plain, told = toy_plan(), forecast(toy_plan(), {"seconds": 3.0})
    assert [each.key for each in plain] == [each.key for each in told]
    assert [each.payload for each in plain] == [each.payload for each in told]


def test_it_lies_beside_the_result_and_outside_its_content(
    tmp_path: Path, watch: Recorder, quiet: LineProgress
) -> None:
    plans = {"without": toy_plan(), "with": forecast(toy_plan(), {"seconds": 3.0})}
    made = {
        name: materialise(plan, Store(tmp_path / name), watch=watch, progress=quiet)["count"].artifact
        for name, plan in plans.items()
    }
    assert made["with"].manifest.content == made["without"].manifest.content
    assert str(FILE) in made["with"].manifest.aux
    assert read_forecast(made["with"].path) == {"seconds": 3.0}
    assert str(FILE) not in made["without"].manifest.aux
    assert read_forecast(made["without"].path) is None


def test_what_goes_on_later_is_planned_anew(store: Store, watch: Recorder, quiet: LineProgress) -> None:
    plan = toy_plan(count=Count(fail=True))
    for seconds in (3.0, 2.0):
        with pytest.raises(Failed):
            materialise(forecast(plan, {"seconds": seconds}), store, watch=watch, progress=quiet)
        half_built = next(store.root.glob(".building/count/*/aux")).parent
        assert read_forecast(half_built) == {"seconds": seconds}


def test_a_number_that_is_not_finite_is_none(tmp_path: Path) -> None:
    (tmp_path / "aux").mkdir()
    with pytest.raises(ValueError, match="not JSON compliant"):
        keep_forecast(tmp_path, {"seconds": float("nan")})
    assert read_forecast(tmp_path) is None
