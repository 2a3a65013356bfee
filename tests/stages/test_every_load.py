"""What is saved by one process or two, compiled or not, is loaded by each of these and sampled from: sixteen pairs."""

import json
import shutil
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from safetensors.torch import load_file
from toy_training import TRAIN, Corpus, flat, launch, write_job

from elf.pipeline.progress import LineProgress
from elf.pipeline.stage import StageContext
from elf.stages import train
from elf.stages.checkpoint import saved_steps
from elf.stages.compute import TrainCompute
from elf.stages.config import Sample
from elf.stages.rows import TokenRows
from elf.stages.sampling import Sampling, sampler_config
from elf.stages.train_settings import Train
from elf.stages.trained import load_trained
from elf.stages.training_metrics import read_metrics

SUPPORT = str(Path(__file__).resolve().parent.parent / "support")
SETTINGS: dict[str, Any] = {**TRAIN, "optim": {**TRAIN["optim"], "lr": 0.003}, "batch": 2, "steps": 5}
SAVED = 3


class Way(NamedTuple):
    """How a training run is run."""

    processes: int
    compiled: bool

    def __str__(self) -> str:
        return f"{'compiled' if self.compiled else 'plain'}-{self.processes}"


WAYS = [Way(*each) for each in product((1, 2), (False, True))]


def train_all(corpus: Corpus, wanted: list[tuple[Path, int, Way]], folder: Path) -> None:
    """Every run in its folder up to its steps; those of two processes in one launch."""
    for out, steps, way in wanted:
        if way.processes == 1:
            out.mkdir(exist_ok=True)
            compute = TrainCompute(device="cpu", threads=1, compile=way.compiled)
            context = StageContext(out, corpus.inputs, compute, LineProgress(every=1e9))
            train.run(Train.model_validate({**SETTINGS, "steps": steps}), context)
    two = [(str(out), steps, way.compiled) for out, steps, way in wanted if way.processes == 2]
    for out, *_ in two:
        Path(out).mkdir(exist_ok=True)
    job = write_job(corpus, folder, SETTINGS, compute={"processes": 2}, entry="every_way:run")
    launch(job, 2, PYTHONPATH=SUPPORT, WAYS=json.dumps(two))


def sampled(out: Path, corpus: Corpus) -> int:
    """How many texts come out of its averaged weights."""
    trained = load_trained(out, "ema")
    config = sampler_config(Sample(name="x", method="ode", steps=2), trained)
    vocabulary = TokenRows.open(corpus.inputs["tokens"].path).vocabulary
    return len(Sampling(trained, config, vocabulary, None, "cpu").ids(0, range(4)))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor:UserWarning", "ignore:`torch.jit.script:DeprecationWarning"
)
def test_every_way_loads_what_every_way_saved(tmp_path: Path) -> None:
    corpus = Corpus.make(tmp_path / "corpus")
    saves = [(tmp_path / f"{way}", SAVED, way) for way in WAYS]
    train_all(corpus, [*saves, (tmp_path / "alone", SETTINGS["steps"], WAYS[0])], tmp_path / "saving")
    loads: list[tuple[Path, int, Way]] = []
    for (saved, _, _), way in product(saves, WAYS):
        loads.append((tmp_path / f"{saved.name}-{way}", SETTINGS["steps"], way))
        shutil.copytree(saved, loads[-1][0])
    train_all(corpus, loads, tmp_path / "loading")
    wanted = list(read_metrics(tmp_path / "alone" / "metrics.jsonl"))
    names = checkpoint_names(tmp_path / "alone")
    assert not any("_orig_mod" in name or name.startswith("module.") for name in names["model"])
    assert len(loads) == 16
    for out, steps, _ in loads:
        assert list(saved_steps(out / "checkpoints")) == [steps], out
        assert checkpoint_names(out) == names, out
        assert sampled(out, corpus) == 4
        for line, other in zip(read_metrics(out / "metrics.jsonl"), wanted, strict=True):
            assert flat(line) == pytest.approx(flat(other), rel=1e-3), out


def checkpoint_names(out: Path) -> dict[str, list[str]]:
    """Of the tensors of each part of the last checkpoint."""
    folder = out / "checkpoints" / f"step_{SETTINGS['steps']}"
    return {part: sorted(load_file(folder / f"{part}.safetensors")) for part in ("model", "ema", "optimizer")}
