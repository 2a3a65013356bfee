"""What a probe finds is kept and read again; seconds follow from it. Nobody asserts how fast this machine is."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from elf.pipeline.stage import Compute
from elf.stages import machine as machines
from elf.stages.disk import disk_speed, known_disk, mount_of
from elf.stages.machine import (
    DiskSpeed,
    Machine,
    Speed,
    Work,
    machine_file,
    measured_machine,
    read_speed,
    reference,
    remember,
    this_machine,
)

FOUND = replace(reference(2), measured="2026-11-30")
COMPUTE = Compute()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "elf"


def on(cores: int = 4, gpus: int = 0, **changed: object) -> Machine:
    ladders = {"float32": {64: 1e9, 1024: 4e9}}
    together = {"float32": {64: 2e9, 1024: 8e9}}
    speed = Speed(
        "", False, ladders, together, {"bfloat16": {256: 1e12}, "float32": {256: 1e11}}, 1e-5, 1e-4, 7.5e6
    )
    return Machine(cores, gpus, replace(speed, **changed), memory=10**9)  # type: ignore[arg-type]


def test_what_was_measured_is_read_again(cache: Path) -> None:
    path = machine_file(2, 0)
    remember(path, FOUND, pytest.fail)
    assert path.parent == cache
    assert read_speed(path) == FOUND


def test_a_measured_machine_is_not_measured_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = this_machine()
    assert here.speed == reference(here.cores)
    remember(machine_file(here.cores, here.gpus), FOUND, pytest.fail)
    monkeypatch.setattr(subprocess, "run", pytest.fail)
    assert this_machine().speed == measured_machine(pytest.fail).speed == FOUND


@pytest.mark.slow
def test_the_probe_says_all_that_is_asked_for(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The real one, its tries cut short; what it finds is kept."""
    short = tmp_path / "short.py"
    short.write_text(
        "import json\nfrom dataclasses import asdict\nfrom elf.stages import probe\n"
        "probe.BUDGET = 0.0\nprobe.SHAPES = {8: 8}\nprint(json.dumps(asdict(probe.probe())))\n"
    )
    real = subprocess.run

    def run(command: list[str], **options: object) -> object:
        assert command == [sys.executable, "-m", "elf.stages.probe"]
        return real([sys.executable, str(short)], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", run)
    said: list[str] = []
    found = measured_machine(said.append)
    assert found.speed.measured
    assert set(found.speed.one["float32"]) == set(found.speed.all["bfloat16"]) == {8}
    assert len(said) == 1
    assert str(machine_file(found.cores, found.gpus)) in said[0]
    assert this_machine().speed == found.speed


@pytest.mark.parametrize("output", ["", "{}", "[]", '{"one": 3}', None])
def test_a_probe_that_fails_leaves_the_reference(
    cache: Path, monkeypatch: pytest.MonkeyPatch, output: str | None
) -> None:
    def run(*_: object, **__: object) -> object:
        if output is None:
            raise subprocess.TimeoutExpired("probe", 1)
        return subprocess.CompletedProcess([], 0, stdout=output)

    monkeypatch.setattr(subprocess, "run", run)
    said: list[str] = []
    found = measured_machine(said.append)
    assert found.speed == reference(found.cores)
    assert "could not be measured" in said[-1]


@pytest.mark.parametrize(
    "change",
    [{"format": 0}, {"call": 0}, {"loops": -1}, {"one": {}}, {"one": {"float32": {"64": "fast"}}}, None],
)
def test_a_damaged_record_is_none(cache: Path, change: dict[str, object] | None) -> None:
    path = machine_file(2, 0)
    remember(path, FOUND, pytest.fail)
    plain = json.loads(path.read_text())
    path.write_text("{" if change is None else json.dumps({**plain, **change}))
    assert read_speed(path) is None


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said: list[str] = []
    remember(tmp_path / "file/machine.json", FOUND, said.append)
    assert "cannot be kept" in said[0]


def test_rates_lie_between_those_measured() -> None:
    machine = on()
    assert machine.rate(1, 64) == 1e9
    assert machine.rate(1, 8) == 1e9
    assert machine.rate(1, 4096) == 4e9
    assert machine.rate(1, 256) == pytest.approx(2e9)
    assert machine.rate(4, 1024) == pytest.approx(8e9)
    assert machine.rate(2, 1024) == pytest.approx(4e9 * 2**0.5)
    assert on(cores=1).rate(1, 64) == 1e9


def test_narrow_products_and_many_calls_take_longer() -> None:
    machine, work = on(), Work(4e9, 1024)
    assert machine.seconds(work, COMPUTE) == pytest.approx(0.5)
    assert machine.seconds(work._replace(narrow=1024), COMPUTE) == pytest.approx(1.0)
    assert machine.seconds(work._replace(calls=1000), COMPUTE) == pytest.approx(0.51)
    assert machine.seconds(work, Compute(threads=1)) == pytest.approx(1.0)
    assert machine.seconds(work, Compute(threads=1), processes=9) == pytest.approx(0.5)


def test_gpus_share_the_work_and_launch_beside_it() -> None:
    machine, work = on(gpus=2), Work(1e12, 256, "bfloat16")
    assert machine.seconds(work, COMPUTE) == pytest.approx(1.0)
    assert machine.seconds(work, COMPUTE, processes=8) == pytest.approx(0.5)
    assert machine.seconds(work._replace(calls=1000), COMPUTE) == pytest.approx(1.0)
    assert machine.seconds(work._replace(calls=50_000), COMPUTE) == pytest.approx(5.0)
    assert machine.seconds(work, Compute(device="cpu")) > 100


def test_the_peak_is_that_of_the_best_products() -> None:
    assert on().peak(Compute(threads=1), "float32") == 4e9
    assert on().peak(COMPUTE, "bfloat16") == pytest.approx(8e9)
    slow = {"float32": {1024: 4e9}, "bfloat16": {1024: 1e9}}
    assert on(one=slow, all=slow).peak(Compute(threads=1), "bfloat16") == 4e9
    assert on(gpus=2).peak(COMPUTE, "bfloat16", processes=8) == 2e12
    assert on(gpus=2).peak(COMPUTE, "float32") == 1e11
    assert on(gpus=2).told(COMPUTE, "bfloat16", processes=8) == "2 GPUs in bfloat16"
    assert on().told(Compute(threads=1), "float32") == "1 thread in float32"
    assert on().told(COMPUTE, "bfloat16") == "4 threads in float32 or bfloat16"


def test_a_gpu_that_torch_cannot_use_is_none() -> None:
    machine = on(gpus=1, gpu={})
    assert machine.seconds(Work(4e9, 1024), COMPUTE) == pytest.approx(0.5)
    assert machine.factor == 3


def test_a_machine_says_what_it_is() -> None:
    assert this_machine().cores >= 1
    assert this_machine().memory > 10**8
    assert str(on(2)) == "2 CPU cores, no GPU"
    assert str(on(1, 8)) == "1 CPU core, 8 GPUs"


def test_a_disk_is_measured_once(cache: Path, tmp_path: Path) -> None:
    store, said = tmp_path / "store/below", DiskSpeed(3.0, 4.0, "2026-11-30")
    asked: list[Path] = []

    def measure(folder: Path) -> DiskSpeed:
        asked.append(folder)
        return said

    assert known_disk(store) is None
    assert disk_speed(store, measure=measure) == disk_speed(tmp_path, measure=measure) == said
    assert known_disk(store) == said
    assert asked == [tmp_path]
    assert disk_speed(store, anew=True, measure=measure) == said
    assert len(asked) == 2
    assert not store.exists()


def test_measuring_a_disk_leaves_nothing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elf.stages.disk.SIZE", 2 << 20)
    (tmp_path / "store").mkdir()
    found = disk_speed(tmp_path / "store")
    assert found is not None
    assert found.write > 0
    assert found.read > 0
    assert not any((tmp_path / "store").iterdir())


def test_a_disk_that_takes_nothing_has_no_speed(cache: Path, tmp_path: Path) -> None:
    def refuse(_: Path) -> DiskSpeed:
        raise PermissionError

    assert disk_speed(tmp_path, measure=refuse) is None
    assert known_disk(tmp_path) is None


def test_a_mount_is_where_a_file_system_begins(tmp_path: Path) -> None:
    found = mount_of(tmp_path)
    assert tmp_path.resolve().is_relative_to(found)
    assert found.parent == found or found.parent.stat().st_dev != found.stat().st_dev


def test_looking_loads_no_torch(cache: Path) -> None:
    here = this_machine()
    remember(machine_file(here.cores, here.gpus), FOUND, pytest.fail)
    code = (
        "import sys\nfrom elf.stages.machine import measured_machine\nimport elf.stages.breakeven, elf.stages.room\n"
        "measured_machine(print)\nprint('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_records_name_the_host_and_its_torch() -> None:
    assert machines.version("torch") in machine_file(2, 0).name
    assert machine_file(2, 0) != machine_file(2, 1)
