"""Figures in TensorBoard or W&B: each step once, whatever happened; a missing package is told before training."""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from toy_training import TRAIN, Corpus, Size

from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.progress import LineProgress
from elf.pipeline.stage import StageContext
from elf.stages import tracking, train
from elf.stages.compute import TrainCompute
from elf.stages.train_settings import Train
from elf.stages.training_metrics import read_metrics
from elf.stages.training_state import TrainingState

SETTINGS = {**TRAIN, "heldout": {"every": 10, "rows": 8}}


class Killed(BaseException):
    """Stands for a signal."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus.make(tmp_path_factory.mktemp("corpus"), heldout=Size(rows=9))


def run(corpus: Corpus, out: Path, tracker: str) -> None:
    out.mkdir(exist_ok=True)
    compute = TrainCompute.model_validate({"device": "cpu", "threads": 1, "tracker": tracker})
    train.run(
        Train.model_validate(SETTINGS), StageContext(out, corpus.inputs, compute, LineProgress(every=1e9))
    )


def run_killed(corpus: Corpus, out: Path, tracker: str, *, at: int) -> None:
    """A run that dies in that step."""
    advance = TrainingState.advance

    def advanced(state: TrainingState, lr: float) -> None:
        if state.step == at:
            raise Killed
        advance(state, lr)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingState, "advance", advanced)
        with pytest.raises(Killed):
            run(corpus, out, tracker)


def test_tensorboard_has_each_step_once_after_a_kill(corpus: Corpus, tmp_path: Path) -> None:
    for step in (3, 13):  # before the first checkpoint, and three steps after the second
        run_killed(corpus, tmp_path, "tensorboard", at=step)
    run(corpus, tmp_path, "tensorboard")
    log = EventAccumulator(str(tmp_path / "aux" / "tensorboard"), size_guidance={"scalars": 0})
    log.Reload()
    lines = list(read_metrics(tmp_path / "metrics.jsonl"))
    for name in ("loss", "ce", "l2", "lr", "grad_norm"):
        told = [(event.step, event.value) for event in log.Scalars(name)]
        having = [line for line in lines if name in line and (name != "ce" or line["decode_positions"])]
        assert told == [(line["step"], pytest.approx(line[name])) for line in having]
    for name in ("loss", "l2"):
        assert [event.step for event in log.Scalars(f"heldout/{name}")] == [0, 10, 20]
        assert [event.step for event in log.Scalars(f"heldout_raw/{name}")] == [0, 10, 20]
    assert {event.step for event in log.Scalars("mfu")} == set(range(1, 21))


class Wandb(ModuleType):
    """As much of W&B as is used; ``told`` has what each run was told."""

    class Error(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("wandb")
        self.__spec__ = ModuleSpec("wandb", None)
        self.begun: list[dict[str, Any]] = []
        self.told: list[tuple[int, dict[str, Any]]] = []
        self.ended = 0
        self.config = self
        self.refusal: str | None = None

    def init(self, **options: Any) -> "Wandb":
        if self.refusal is not None:
            raise Wandb.Error(self.refusal)
        self.begun.append(options)
        folder = Path(options["dir"]) / "wandb"
        folder.mkdir(exist_ok=True)
        (folder / "run").write_text("")
        (folder / "latest-run").unlink(missing_ok=True)
        (folder / "latest-run").symlink_to("run")
        return self

    def update(self, values: dict[str, Any], **_: Any) -> None:
        assert values["batch"] == TRAIN["batch"]

    def log(self, values: dict[str, Any], step: int) -> None:
        self.told.append((step, values))

    def finish(self) -> None:
        self.ended += 1


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Wandb:
    made = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", made)
    return made


def test_wandb_goes_on_in_the_same_run_and_hears_nothing_twice(
    corpus: Corpus, tmp_path: Path, wandb: Wandb
) -> None:
    run_killed(corpus, tmp_path, "wandb", at=13)
    run(corpus, tmp_path, "wandb")
    first, second = wandb.begun
    assert first == second
    assert first["resume"] == "allow"
    assert wandb.ended == 2
    losses = [(step, values["loss"]) for step, values in wandb.told if "loss" in values]
    lines = [line for line in read_metrics(tmp_path / "metrics.jsonl") if "loss" in line]
    assert losses == [(line["step"], line["loss"]) for line in lines]
    assert [step for step, values in wandb.told if "heldout/loss" in values] == [0, 10, 20]
    assert not any(path.is_symlink() for path in (tmp_path / "aux").rglob("*"))


def test_wandb_that_does_not_begin_is_told_before_training(
    corpus: Corpus, tmp_path: Path, wandb: Wandb
) -> None:
    wandb.refusal = "api_key not configured"
    with pytest.raises(Failed, match=r"W&B does not begin: api_key not configured.*WANDB_MODE=offline"):
        run(corpus, tmp_path, "wandb")
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_package_that_is_missing_is_named_with_its_cure(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(Misconfigured, match="-m pip install tensorboard"):
        run(corpus, tmp_path, "tensorboard")
    assert not (tmp_path / "metrics.jsonl").exists()
    tracking.refuse_missing("none")
