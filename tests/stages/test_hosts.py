"""Training on several processes and hosts, by an accelerate config file: the numbers of one process."""

import io
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from toy_training import TRAIN, Corpus, Size, config_file

from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.launch import run_child
from elf.pipeline.progress import LineProgress
from elf.pipeline.stage import StageContext
from elf.stages import train
from elf.stages.compute import TrainCompute
from elf.stages.experiment import TRAIN as SPEC
from elf.stages.train_settings import Train
from elf.stages.training_metrics import read_metrics

PATIENCE = 240
# One row for each of two processes, and three that are held out: every step a process has rows of one branch only,
# and the last batch of a measurement is on the first process alone.
SETTINGS: dict[str, Any] = {
    **TRAIN,
    "optim": {**TRAIN["optim"], "lr": 0.003},
    "objective": {"decode_share": 0.5},
    "batch": 2,
    "heldout": {"every": 10, "rows": 3},
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus.make(tmp_path_factory.mktemp("corpus"), heldout=Size(rows=5))


@pytest.fixture(scope="module")
def alone(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> list[Mapping[str, Any]]:
    """The metrics of one process."""
    context = context_of(corpus, tmp_path_factory.mktemp("alone"))
    train.run(Train.model_validate(SETTINGS), context)
    return metrics(context)


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[int]:
    file = os.open(tmp_path / "lock", os.O_CREAT)
    yield file
    os.close(file)


def context_of(corpus: Corpus, out: Path, said: io.StringIO | None = None, **compute: Any) -> StageContext:
    out.mkdir(exist_ok=True)
    settings = TrainCompute(device="cpu", threads=1, **compute)
    return StageContext(out, corpus.inputs, settings, LineProgress(said or io.StringIO()))


def metrics(context: StageContext) -> list[Mapping[str, Any]]:
    return list(read_metrics(context.out / "metrics.jsonl"))


def assert_the_same(
    lines: list[Mapping[str, Any]], wanted: list[Mapping[str, Any]], rel: float = 1e-5
) -> None:
    for line, other in zip(lines, wanted, strict=True):
        assert line.keys() == other.keys()
        for name, value in other.items():
            assert line[name] == pytest.approx(value, rel=rel), f"step {line['step']} {name}"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_config_file_starts_its_processes(
    corpus: Corpus, alone: list[Mapping[str, Any]], tmp_path: Path, lock: int
) -> None:
    context = context_of(corpus, tmp_path / "out", processes=2, accelerate_config=config_file(tmp_path))
    run_child(SPEC, Train.model_validate(SETTINGS), context, lock=lock)
    assert_the_same(metrics(context), alone)
    split = [line["decode_positions"] for line in alone if "decode_positions" in line]
    assert set(split) == {0, 8, 16}, "both processes decode, one does, none does"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_other_hosts_join_by_the_command_they_are_told(
    corpus: Corpus, alone: list[Mapping[str, Any]], tmp_path: Path, lock: int
) -> None:
    """A second host, which is this one, with a launcher of its own."""
    said = io.StringIO()
    config = config_file(tmp_path, hosts=2)
    context = context_of(corpus, tmp_path / "out", said, processes=2, accelerate_config=config)
    first = threading.Thread(
        target=run_child, args=(SPEC, Train.model_validate(SETTINGS), context), kwargs={"lock": lock}
    )
    first.start()
    deadline = time.monotonic() + PATIENCE
    while "on each of those hosts: " not in said.getvalue():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    told = said.getvalue().split("on each of those hosts: ")[1].split("\n")[0]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    command = told.replace("--machine_rank RANK", "--machine_rank 1").split()
    second = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    first.join(PATIENCE)
    assert not first.is_alive()
    assert second.returncode == 0, second.stderr
    assert_the_same(metrics(context), alone)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_compiled_processes_that_compute_blocks_again(
    corpus: Corpus, alone: list[Mapping[str, Any]], tmp_path: Path, lock: int
) -> None:
    context = context_of(corpus, tmp_path / "out", processes=2, compile=True, checkpointing=True)
    run_child(SPEC, Train.model_validate({**SETTINGS, "heldout": None}), context, lock=lock)
    assert_the_same(metrics(context), [line for line in alone if "loss" in line], rel=1e-3)


def test_a_config_file_that_is_none_is_refused(corpus: Corpus, tmp_path: Path, lock: int) -> None:
    (tmp_path / "list.yaml").write_text("- 1\n")
    for name in ("list.yaml", "absent.yaml"):
        context = context_of(corpus, tmp_path / "out", accelerate_config=str(tmp_path / name))
        with pytest.raises(Misconfigured, match=rf"names .*{name}, which is no accelerate config file"):
            run_child(SPEC, Train.model_validate(SETTINGS), context, lock=lock)


@pytest.mark.slow
def test_another_number_of_processes_than_asked_for_is_refused(
    corpus: Corpus, tmp_path: Path, lock: int
) -> None:
    context = context_of(corpus, tmp_path / "out", accelerate_config=config_file(tmp_path))
    with pytest.raises(Failed, match="asks for 1 processes, but 2 came up"):
        run_child(SPEC, Train.model_validate(SETTINGS), context, lock=lock)
