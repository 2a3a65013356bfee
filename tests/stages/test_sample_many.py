"""Sampling on several processes: the texts of one, whatever becomes of a process on the way."""

import io
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from judging import make_context
from toy_sampling import make_pairs, make_text, setting
from toy_training import config_file

from elf.cache.files import make_folder
from elf.cache.store import Artifact
from elf.pipeline.errors import Failed
from elf.pipeline.launch import run_child
from elf.pipeline.progress import LineProgress
from elf.pipeline.stage import Compute, StageContext
from elf.stages import sample
from elf.stages.compute import SampleCompute
from elf.stages.experiment import SAMPLE, TRAIN
from elf.stages.sampled import cut
from elf.stages.texts import read_texts

SUPPORT = Path(__file__).parent.parent / "support"
RESULT = ("samples.jsonl", "settings.json", "trajectory.json")
PATIENCE = 120
GRIEVED = replace(SAMPLE, entry="dying_sampler:run")
MANY = {"count": 64, "seeds": (0, 7), "trajectories": 3}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return make_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def alone(text: dict[str, Artifact], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process makes of `MANY`, ten texts at a time."""
    out = tmp_path_factory.mktemp("alone")
    sample.run(setting(**MANY), make_context(out, text, batch=10))
    return out


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    file = os.open(tmp_path / "lock", os.O_CREAT)
    yield file
    os.close(file)


def two(
    out: Path,
    inputs: Mapping[str, Artifact],
    said: io.StringIO | None = None,
    batch: int = 10,
    config: str | None = None,
) -> StageContext:
    out.mkdir(exist_ok=True)
    compute = SampleCompute(device="cpu", threads=1, batch=batch, processes=2, accelerate_config=config)
    return StageContext(out, inputs, compute, LineProgress(said or io.StringIO()))


def assert_same(out: Path, wanted: Path) -> None:
    for name in RESULT:
        assert (out / name).read_bytes() == (wanted / name).read_bytes()
    assert not (out / "parts").exists()


def test_processes_are_launched_where_several_are_asked_for() -> None:
    one, several = Compute(), (Compute(processes=2), Compute(accelerate_config="a.yaml"))
    assert not SAMPLE.launched(one)
    assert TRAIN.launched(one)
    assert all(SAMPLE.launched(each) for each in several)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_processes_make_the_texts_of_one(
    text: dict[str, Artifact], alone: Path, tmp_path: Path, lock: int
) -> None:
    said = io.StringIO()
    facts = run_child(SAMPLE, setting(**MANY), two(tmp_path / "two", text, said), lock=lock)
    assert_same(tmp_path / "two", alone)
    assert facts["texts"] == 128
    assert "sample: 128 of 128 texts" in said.getvalue()
    texts = read_texts(alone / "samples.jsonl")
    assert len({each.text for each in texts}) > 100
    assert len({each.text for each in texts[:64]} & {each.text for each in texts[64:]}) < 32


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_processes_give_one_text_per_pair(tmp_path: Path, lock: int) -> None:
    """Going on from what one process made; both are started by a config file."""
    pairs, said = make_pairs(tmp_path), io.StringIO()
    section = setting(method="ode", input_guidance=2.0, seeds=(3,), trajectories=5)
    sample.run(section, make_context(tmp_path / "one", pairs, batch=4))
    context = two(tmp_path / "two", pairs, said, batch=4, config=config_file(tmp_path))
    sampling, _ = sample.prepare(section, context, torch.device("cpu"))
    sample.sample_batch(sampling, cut((3,), 9, 3)[1], make_folder(context.out / "parts"))
    run_child(SAMPLE, section, context, lock=lock)
    assert "sample: 9 of 9 texts" in said.getvalue()
    assert_same(tmp_path / "two", tmp_path / "one")
    assert [each.id for each in read_texts(tmp_path / "two" / "samples.jsonl")] == list(range(9))
    assert "processes only" not in said.getvalue()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_a_killed_process_left_is_gone_on_from_by_one_alone(
    text: dict[str, Artifact], alone: Path, tmp_path: Path, lock: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    monkeypatch.setenv("GRIEF", "1:2:killed")
    with pytest.raises(Failed, match=r"sample process was ended by SIGKILL.*goes on from what it had saved"):
        run_child(GRIEVED, setting(**MANY), two(out, text), lock=lock)
    kept = sorted(path.name for path in (out / "parts").glob("*.json"))
    assert {"0-0-10.json", "0-10-10.json", "0-20-10.json", "0-30-10.json"} <= set(kept)
    assert 4 <= len(kept) <= 5
    assert not (out / "samples.jsonl").exists()
    ids, again = sample.Sampling.ids, list[Any]()

    def counted(sampling: sample.Sampling, seed: int, places: Any) -> Any:
        again.extend(places)
        return ids(sampling, seed, places)

    monkeypatch.setattr(sample.Sampling, "ids", counted)
    sample.run(setting(**MANY), make_context(out, text, batch=10))
    assert len(again) == 128 - 10 * len(kept)
    assert_same(out, alone)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_process_that_refuses_leaves_no_other_waiting(
    text: dict[str, Artifact], alone: Path, tmp_path: Path, lock: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was made stays, and two processes go on from it by other batches."""
    out = tmp_path / "out"
    monkeypatch.setenv("GRIEF", "1:1:refuses")
    began = time.monotonic()
    with pytest.raises(Failed, match=r"^Rank 1 does not like texts \[30, 31, .*\]\.$"):
        run_child(GRIEVED, setting(**MANY), two(out, text), lock=lock)
    assert time.monotonic() - began < PATIENCE
    assert len(list((out / "parts").glob("*.json"))) >= 2
    said = io.StringIO()
    run_child(SAMPLE, setting(**MANY), two(out, text, said, batch=7), lock=lock)
    assert_same(out, alone)
    assert "processes only" not in said.getvalue()
