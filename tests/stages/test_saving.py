"""Checkpoints beside training: what is saved is what there was at that moment, and a fault is told."""

import threading
from pathlib import Path

import pytest
import torch

from elf.pipeline.errors import Failed
from elf.stages import checkpoint as checkpoints
from elf.stages.checkpoint import Checkpoint
from elf.stages.saving import Saver


def made(step: int, weight: torch.Tensor) -> Checkpoint:
    tensors = {"w": weight}
    return Checkpoint(step, tensors, tensors, {"w.momentum": weight}, {"note": step})


def test_what_changes_after_saving_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, held = torch.zeros(5), threading.Event()
    real = checkpoints.save
    monkeypatch.setattr(checkpoints, "save", lambda *a, **k: (held.wait(60), real(*a, **k)))
    with Saver(tmp_path, keep=3) as saver:
        for step in (1, 2):
            weight.fill_(step)
            saver.save(made(step, weight))
            weight.fill_(-1)
            assert checkpoints.saved_steps(tmp_path) == list(range(1, step)), (
                "the next waits for the one before"
            )
            held.set()
    for step in (1, 2):
        found = checkpoints.read(tmp_path / f"step_{step}")
        assert found.model["w"].tolist() == [step] * 5
        assert found.optimizer["w.momentum"].tolist() == [step] * 5
        assert found.state["note"] == step


def test_a_fault_is_raised_by_the_next_save(tmp_path: Path) -> None:
    saver = Saver(tmp_path, keep=1)
    saver.save(made(1, torch.full((2,), torch.nan)))
    with pytest.raises(Failed, match="after step 1 was not written"):
        saver.save(made(2, torch.zeros(2)))
    assert checkpoints.saved_steps(tmp_path) == []


def save_what_cannot_be(folder: Path, error: Exception | None = None) -> None:
    with Saver(folder, keep=1) as saver:
        saver.save(made(3, torch.full((2,), torch.inf)))
        if error is not None:
            raise error


def test_a_fault_is_raised_at_the_end_and_covers_no_other_error(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="after step 3 was not written"):
        save_what_cannot_be(tmp_path)
    with pytest.raises(KeyError):
        save_what_cannot_be(tmp_path, KeyError())
