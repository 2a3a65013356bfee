"""Where and how tensors are computed: the compiler is used where it is there, and missed in words where it is not."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_training import TRAIN, Corpus, Size, payload

from elf.pipeline.errors import Failed
from elf.pipeline.progress import LineProgress
from elf.pipeline.stage import StageContext
from elf.stages import devices, train
from elf.stages.compute import ComputeByStage, TrainCompute
from elf.stages.devices import choose_compile, choose_device, describe_devices
from elf.stages.train_settings import Train
from elf.stages.training_metrics import read_metrics


def test_a_gpu_that_is_not_there_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == "cpu"
    with pytest.raises(Failed, match="no CUDA device here"):
        choose_device("cuda")


def test_what_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = LineProgress(io.StringIO())
    monkeypatch.setattr(devices, "_missing_for_compiling", lambda _: None)
    found = [
        choose_compile(wanted, device, progress)
        for wanted in ("auto", True, False)
        for device in ("cpu", "cuda")
    ]
    assert found == [False, True, True, True, False, False]


@pytest.mark.parametrize("missing", ["compiler", "headers"])
def test_a_compiler_that_is_not_there_is_missed(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "compiler":
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CXX", raising=False)
    else:
        monkeypatch.setenv("CXX", "true -a")
        monkeypatch.setattr(devices.sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(Failed, match=r"torch\.compile lacks .*(g\+\+ or clang|python3-dev)"):
        choose_compile(True, "cpu", LineProgress(io.StringIO()))
    said = io.StringIO()
    monkeypatch.setattr(devices, "find_spec", lambda _: None)
    assert not choose_compile("auto", "cuda", LineProgress(said))
    assert "Not compiled, for want of the package triton." in said.getvalue()


def test_settings_are_read_as_a_file_has_them() -> None:
    given = {"train": {"compile": True, "checkpointing": True}, "sample": {"compile": "auto"}}
    compute = ComputeByStage.model_validate(given)
    assert (compute.train.compile, compute.train.checkpointing, compute.sample.compile) == (
        True,
        True,
        "auto",
    )
    with pytest.raises(ValueError, match="compile"):
        ComputeByStage.model_validate({"train": {"compile": "maybe"}})


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus.make(tmp_path_factory.mktemp("corpus"), heldout=Size(rows=5))


def run(corpus: Corpus, out: Path, settings: dict[str, Any], **compute: Any) -> list[Any]:
    out.mkdir(exist_ok=True)
    section = Train.model_validate({**TRAIN, "steps": 8, "heldout": {"every": 4, "rows": 4}, **settings})
    setup = TrainCompute(device="cpu", threads=1, **compute)
    train.run(section, StageContext(out, corpus.inputs, setup, LineProgress(io.StringIO())))
    return list(read_metrics(out / "metrics.jsonl"))


def test_a_run_that_computes_blocks_again_leaves_the_same_bytes(corpus: Corpus, tmp_path: Path) -> None:
    settings = {"precision": "bf16", "model": {**TRAIN["model"], "depth": 4, "dropout": 0.2}}
    for name, checkpointing in (("kept", False), ("again", True)):
        run(corpus, tmp_path / name, settings, checkpointing=checkpointing)
    assert payload(tmp_path / "kept") == payload(tmp_path / "again")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor:UserWarning", "ignore:`torch.jit.script:DeprecationWarning"
)
def test_a_compiled_run_is_the_same_to_rounding_and_goes_on_uncompiled(
    corpus: Corpus, tmp_path: Path
) -> None:
    wanted = run(corpus, tmp_path / "plain", {})
    compiled = run(corpus, tmp_path / "compiled", {}, compile=True)
    run(corpus, tmp_path / "mixed", {"steps": 4}, compile=True)
    mixed = run(corpus, tmp_path / "mixed", {})
    for lines in (compiled, mixed):
        for line, other in zip(lines, wanted, strict=True):
            assert line.keys() == other.keys()
            assert all(line[name] == pytest.approx(other[name], rel=1e-3) for name in other), line
    assert mixed != wanted != compiled, "another rounding: it was compiled"


def test_devices_are_told_by_their_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    here = describe_devices("cpu", processes=4)
    assert (here.kind, here.count, here.processes) == ("cpu", 1, 4)
    assert here.name
    assert here.cores >= 1
    assert describe_devices("cpu", processes=4, hosts=2).count == 2
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a GPU")
    assert describe_devices("cuda", processes=8, hosts=2).count == 8
