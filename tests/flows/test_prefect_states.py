"""What Prefect's UI shows of a run is true: states, messages, artifacts; and only our keys decide what is reused."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from prefect_service import PATIENCE, Service, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def finish(service: Service, run: str) -> dict[str, Any]:
    """The flow run, once it ended."""
    wait_until(
        lambda: service.flow_run(run)["state_type"] in ("COMPLETED", "FAILED", "CANCELLED", "CRASHED"),
        PATIENCE,
        lambda: f"{service.flow_run(run)['state_name']}: {service.task_states(run)}",
    )
    return service.flow_run(run)


def states(service: Service, run: str, **known: str) -> dict[str, str]:
    """State names by step, once those in ``known`` are what they should be: the last words come late."""
    wait_until(
        lambda: known.items() <= service.task_states(run).items(),
        120,
        lambda: f"{known} in {service.task_states(run)}",
    )
    return service.task_states(run)


def messages(service: Service, run: str) -> dict[str, str]:
    tasks = service.ask("task_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})
    return {task["name"]: task["state"]["message"] for task in tasks}


def test_a_wrong_setting_fails_the_run_in_one_paragraph(service: Service) -> None:
    run = finish(service, service.submit(overrides={"train.stepz": 3}))
    assert run["state_name"] == "Failed"
    message = run["state"]["message"]
    assert "train.stepz" in message
    assert "did you mean `steps`?" in message
    assert "\n" not in message
    assert "Traceback" not in message
    assert service.task_states(run["id"]) == {}


def test_what_cannot_fit_fails_before_its_first_step(service: Service, tmp_path: Path) -> None:
    huge = {"data.train.asset.expect_bytes": 10**16}
    run = finish(service, service.submit(store=str(tmp_path / "store"), overrides=huge))
    assert run["state_name"] == "Failed"
    assert "The largest is fetch-train with ~10.0 PB" in run["state"]["message"]
    assert service.task_states(run["id"]) == {}
    assert not (tmp_path / "store").exists()


def test_a_failed_step_says_why_and_the_rest_shows_as_not_run(service: Service, tmp_path: Path) -> None:
    few = {"tokenize.subwords.size": 9}
    run = finish(service, service.submit(until="encode", store=str(tmp_path / "store"), overrides=few))
    expected = {"tokenizer": "Failed", "tokenize": "NotReady", "encode": "NotReady", "pretrain": "NotReady"}
    states(service, run["id"], **expected)
    said = messages(service, run["id"])
    assert "\n" not in said["tokenizer"]
    assert "log.txt" in said["tokenizer"]
    assert run["state_name"] == "Failed"
    assert run["state"]["message"] == f"Step 'tokenizer': {said['tokenizer']}"
    assert run["name"] == "tiny until encode"


def test_the_scores_stand_beside_their_settings_and_the_figures_are_there(service: Service) -> None:
    run, _ = service.run_tiny()
    wanted = {"flow_runs": {"id": {"any_": [run["id"]]}}, "sort": "KEY_DESC", "limit": 200}
    made = service.ask("artifacts/filter", wanted)
    by_key = {each["key"]: each for each in made if each["key"]}
    rows = {row["texts of"]: row for row in json.loads(by_key["elf-tiny-scores"]["data"])}
    assert rows["sde"]["made with"].startswith("SDE · 4 steps · ω 2 · γ 1.5")
    assert {"ode", "real", "replaced", "unigram"} < rows.keys()
    assert "Distinct" in by_key["elf-tiny-scores"]["description"]
    figures = by_key["elf-tiny-report"]["data"]
    assert figures.count("(data:image/png;base64,") >= 2
    assert f"`{service.work / 'runs/tiny/report.html'}`" in figures
    assert "bottleneck: 16" in by_key["elf-tiny-settings"]["data"]
    assert run["state"]["message"].endswith(f"report: {service.work / 'runs/tiny/report.html'}")


def test_only_our_keys_decide_what_is_reused(service: Service, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    settings = {"data.train.asset.uri": f"path:{text}"}
    store = str(tmp_path / "store")
    paths: list[str] = []
    for content, state in (("one text", "Completed"), ("two text", "Completed"), ("one text", "Cached")):
        text.write_text(content)
        os.utime(text, (1_000_000, 1_000_000))
        run = finish(service, service.submit(only="fetch", store=store, overrides=settings))
        assert states(service, run["id"], **{"fetch-train": state}) == {"fetch-train": state}
        path = messages(service, run["id"])["fetch-train"].rpartition(", ")[2]
        assert content in "".join(each.read_text() for each in Path(path).rglob("*.txt"))
        paths.append(path)
    assert paths[0] == paths[2] != paths[1]


def test_a_retry_does_not_force_again_what_its_run_has_built(service: Service, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    finish(service, service.submit(until="fetch", store=store))
    forced = service.submit(
        until="tokenizer", force=["fetch"], store=store, overrides={"tokenize.subwords.size": 9}
    )
    run = finish(service, forced)
    assert run["state_name"] == "Failed"
    states(service, forced, **{"fetch-train": "Completed"})
    assert "identical to before" in messages(service, forced)["fetch-train"]
    done = service.prefect("flow-run", "retry", forced)
    assert done.returncode == 0, done.stderr
    wait_until(lambda: service.flow_run(forced)["run_count"] == 2, PATIENCE, lambda: "not started again")
    finish(service, forced)

    def told() -> list[str]:
        tasks = service.ask("task_runs/filter", {"flow_runs": {"id": {"any_": [forced]}}})
        return sorted(task["state_name"] for task in tasks if task["name"] == "fetch-train")

    wait_until(lambda: told() == ["Cached", "Completed"], 120, lambda: f"{told()}")
