"""The flow on a real server with a real worker: deployed as shipped, run twice, cancelled never."""

import urllib.error
from pathlib import Path

import pytest
from prefect_service import Service

pytestmark = pytest.mark.slow


@pytest.mark.timeout(600)
def test_a_deployment_runs_and_the_second_run_finds_everything(service: Service, tmp_path: Path) -> None:
    fresh = ("-p", f"store={tmp_path / 'store'}")
    first, built = service.run_tiny(*fresh)
    assert first["state_type"] == "COMPLETED"
    assert set(built.values()) == {"Completed"}
    assert {
        "fetch-train",
        "tokenize",
        "encode",
        "train",
        "sample-ode",
        "evaluate-ode",
        "report",
    } <= built.keys()
    assert (service.work / "runs" / "tiny" / "report.html").is_file()

    second, reused = service.run_tiny(*fresh)
    assert second["state_name"] == "Cached"
    assert reused.keys() == built.keys()
    assert set(reused.values()) == {"Cached"}

    keys = {artifact["key"] for artifact in service.ask("artifacts/filter", {})}
    assert {"elf-tiny-settings", "elf-tiny-scores"} <= keys


@pytest.mark.timeout(300)
def test_parameters_are_refused_when_they_are_submitted(service: Service) -> None:
    done = service.prefect("deployment", "run", "elf/tiny", "-p", "only=trian")
    assert done.returncode == 1
    assert "trian" in done.stdout + done.stderr
    done = service.prefect("deployment", "run", "elf/tiny", "-p", "stage=train")
    assert done.returncode == 1
    assert "stage" in done.stdout + done.stderr
    deployment = service.ask("deployments/filter", {"deployments": {"name": {"any_": ["tiny"]}}})[0]["id"]
    for wrong in (
        {"force": ["nothing"]},
        {"config": 3},
        {"overrides": {"train": {"steps": 3}}},
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            service.ask(
                f"deployments/{deployment}/create_flow_run", {"parameters": {"config": "tiny", **wrong}}
            )
        assert refused.value.code in (409, 422)
        refused.value.close()
