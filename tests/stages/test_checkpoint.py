"""Checkpoints: whole or absent, newest usable one on resume, never from zero beside a past."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from elf.pipeline.errors import Failed
from elf.stages import checkpoint as checkpoints
from elf.stages.checkpoint import Checkpoint, Unusable, keep_only, newest, prove, read, save, saved_steps


def made(step: int) -> Checkpoint:
    model = {"trunk.weight": torch.full((3, 2), float(step)), "head.bias": torch.arange(4.0)}
    ema = {name: tensor / 2 for name, tensor in model.items()}
    optimizer = {"trunk.weight.momentum": torch.ones(3, 2), "head.bias.step": torch.tensor(step)}
    return Checkpoint(step, model, ema, optimizer, {"tokens": 32 * step})


def suits(state: object) -> None:
    """What lies beside a checkpoint is what it was."""


def resume(folder: Path) -> tuple[int | None, list[str]]:
    notes: list[str] = []
    found = newest(folder, notes.append, suits)
    return (None if found is None else found.step), notes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two checkpoints, 100 and 200 steps."""
    for step in (100, 200):
        save(tmp_path / "checkpoints", made(step), keep=5)
    return tmp_path / "checkpoints"


def test_what_is_saved_is_read(folder: Path) -> None:
    found = newest(folder, pytest.fail, suits)
    assert found is not None
    assert found.step == 200
    assert found.state == {"tokens": 6400, "step": 200}
    for part in checkpoints.PARTS:
        want, have = getattr(made(200), part), getattr(found, part)
        assert want.keys() == have.keys()
        assert all(
            torch.equal(want[name], have[name]) and want[name].dtype == have[name].dtype for name in want
        )


def test_equal_states_make_equal_bytes(folder: Path, tmp_path: Path) -> None:
    again = save(tmp_path / "elsewhere", made(200), keep=1)
    for path in sorted(again.iterdir()):
        assert path.read_bytes() == (folder / "step_200" / path.name).read_bytes()


def test_nothing_saved_is_nothing_found(tmp_path: Path) -> None:
    assert resume(tmp_path / "absent") == (None, [])


def test_order_is_that_of_numbers(tmp_path: Path) -> None:
    for step in (900, 1000):
        save(tmp_path, made(step), keep=5)
    assert resume(tmp_path) == (1000, [])


def test_rotation_keeps_the_newest(tmp_path: Path) -> None:
    for step in (8, 9, 10, 11):
        save(tmp_path, made(step), keep=2)
    assert sorted(saved_steps(tmp_path)) == [10, 11]


def cut_newest(folder: Path) -> None:
    file = folder / "step_200" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-5])


def no_optimizer(folder: Path) -> None:
    (folder / "step_200" / "optimizer.safetensors").unlink()


def zero_optimizer(folder: Path) -> None:
    (folder / "step_200" / "optimizer.safetensors").write_bytes(b"")


def empty_dir(folder: Path) -> None:
    shutil.rmtree(folder / "step_200")
    (folder / "step_200").mkdir()


def flipped_bit(folder: Path) -> None:
    file = folder / "step_200" / "ema.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)


def not_finished(folder: Path) -> None:
    (folder / "step_200" / "COMPLETE").unlink()


def wrong_name(folder: Path) -> None:
    (folder / "step_200").rename(folder / "step_300")


DAMAGE = {
    cut_newest: "bytes in model.safetensors where",
    no_optimizer: "step_200 lacks optimizer.safetensors",
    zero_optimizer: "step_200 has 0 bytes in optimizer.safetensors",
    empty_dir: "step_200 has no COMPLETE",
    flipped_bit: "step_200 has other bytes in ema.safetensors",
    not_finished: "step_200 has no COMPLETE",
    wrong_name: "step_300 says in state.json that it was written after step 200",
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda f: f.__name__)
def test_a_damaged_newest_is_skipped_by_name(folder: Path, damage) -> None:
    damage(folder)
    step, notes = resume(folder)
    assert step == 100
    assert len(notes) == 1
    assert DAMAGE[damage] in notes[0]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda f: f.__name__)
def test_damaged_ones_alone_never_mean_step_0(folder: Path, damage) -> None:
    shutil.rmtree(folder / "step_100")
    damage(folder)
    before = sorted(str(path) for path in folder.rglob("*"))
    with pytest.raises(Failed, match="delete that folder to train from step 0") as caught:
        resume(folder)
    assert DAMAGE[damage] in str(caught.value)
    assert sorted(str(path) for path in folder.rglob("*")) == before, "nothing is removed on the way out"


def test_half_saves_are_removed(folder: Path) -> None:
    (folder / ".tmp-1-abc").mkdir()
    (folder / ".tmp-1-abc" / "model.safetensors").write_bytes(b"half")
    not_finished(folder)
    assert resume(folder)[0] == 100
    assert [path.name for path in folder.iterdir()] == ["step_100"]


def test_a_half_first_save_is_a_fresh_start(tmp_path: Path) -> None:
    (tmp_path / ".tmp-1-abc").mkdir()
    assert resume(tmp_path) == (None, [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("part", checkpoints.PARTS)
def test_what_is_not_finite_is_never_written(folder: Path, part: str) -> None:
    state = made(300)
    poisoned = dict(getattr(state, part)) | {"bad": torch.tensor([1.0, float("nan")])}
    parts = {name: getattr(state, name) for name in checkpoints.PARTS} | {part: poisoned}
    with pytest.raises(Failed, match=f"{part} tensor bad"):
        save(folder, Checkpoint(300, **parts, state={}), keep=1)
    assert sorted(path.name for path in folder.iterdir()) == ["step_100", "step_200"]


def test_what_is_not_finite_is_never_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "first_not_finite", lambda tensors: None)
        poisoned = made(300)
        save(folder, Checkpoint(300, poisoned.model, {"x": torch.tensor(torch.inf)}, {}, {}), keep=5)
    step, notes = resume(folder)
    assert step == 200
    assert "step_300 holds NaN or an infinity in ema tensor x" in notes[0]


def test_older_ones_stay_until_the_new_one_is_proven(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unproven(path: Path) -> None:
        raise Unusable("was written to a disk that lies")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "prove", unproven)
        with pytest.raises(Failed, match="a disk that lies"):
            save(folder, made(300), keep=1)
    assert {100, 200} <= set(saved_steps(folder))


def test_a_damaged_one_is_replaced_when_its_step_comes_again(folder: Path) -> None:
    cut_newest(folder)
    assert resume(folder)[0] == 100
    save(folder, made(200), keep=5)
    assert resume(folder) == (200, [])


def test_the_end_keeps_one(folder: Path) -> None:
    (folder / "notes.txt").write_text("left by somebody")
    keep_only(folder, 200)
    assert [path.name for path in folder.iterdir()] == ["step_200"]
    prove(folder / "step_200")


def test_only_what_is_asked_for_is_read(folder: Path) -> None:
    found = read(folder / "step_200", ["ema"])
    assert found.ema
    assert not found.model


def test_a_full_disk_is_said_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "save_file", full)
    with pytest.raises(Failed, match="No space left"):
        save(folder, made(300), keep=1)
    assert sorted(path.name for path in folder.iterdir()) == ["step_100", "step_200"]


def test_safetensors_has_the_names(folder: Path, tmp_path: Path) -> None:
    save_file(dict(made(200).model), tmp_path / "plain.safetensors")
    assert (tmp_path / "plain.safetensors").read_bytes() == (
        folder / "step_200/model.safetensors"
    ).read_bytes()
