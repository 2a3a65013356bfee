"""Weights of the authors' program as a trained model, and back: the same bytes, or a refusal that names the field."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from judging import make_artifact, make_context
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor

from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.stage import StageContext
from elf.stages import imported
from elf.stages.authors import read_file, write_file
from elf.stages.experiment import WeightsStep
from elf.stages.model.config import ModelConfig
from elf.stages.model.naming import to_authors
from elf.stages.model.network import build
from elf.stages.trained import last_checkpoint, load_trained
from elf.stages.vocabulary import full_vocabulary, load_tokenizer

if TYPE_CHECKING:
    from elf.cache.store import Artifact

MODEL = ModelConfig(width=6, vocabulary=14, length=5, hidden=8, depth=2, heads=2, bottleneck=4)
WORDS = {"<pad>": 0, "</s>": 1, "<unk>": 2} | {f"w{i}": i for i in range(3, 12)}


def weights(seed: int, model: ModelConfig = MODEL) -> dict[str, Tensor]:
    network = build(model, torch.Generator().manual_seed(seed))
    return to_authors({name: tensor.clone() for name, tensor in network.state_dict().items()})


def both(**changes: Tensor) -> dict[str, Any]:
    """A checkpoint with some of its tensors changed, the averages too."""
    return {key: {**weights(0), **changes} for key in ("params", "ema_params1")}


def section(**changes: Any) -> WeightsStep:
    plain: dict[str, Any] = {
        "tokenize": {"length": MODEL.length},
        "pairs": False,
        "model": {"depth": 2, "hidden": 8, "heads": 2, "bottleneck": 4},
        "latents": {},
        "objective": {},
    }
    return WeightsStep.model_validate(plain | changes)


def make_inputs(folder: Path, saved: object | None = None) -> StageContext:
    """A context whose checkpoint is ``saved``; by default two sets of weights, saved by a wrapped network."""
    if saved is None:
        saved = {"params": weights(0), "ema_params1": weights(1), "step": 7, "opt_state": {"count": 7}}
    inputs: dict[str, Artifact] = {}
    for role in ("checkpoint", "tokenizer"):
        inputs[role] = make_artifact(folder / role, "fetch")
        (inputs[role].path / "data").mkdir(exist_ok=True)
    torch.save(saved, inputs["checkpoint"].path / "data" / "asset.pt")
    backend = Tokenizer(WordLevel(WORDS, unk_token="<unk>"))
    backend.add_special_tokens(["<pad>", "</s>", "<unk>"])
    backend.save(str(inputs["tokenizer"].path / "data" / "tokenizer.json"))
    return make_context(folder / "out", inputs)


def test_the_weights_come_in_and_go_out_as_the_same_bytes(tmp_path: Path) -> None:
    context = make_inputs(tmp_path)
    facts = imported.run(section(), context)
    assert facts["steps"] == 7
    assert facts["left_out"] == ["opt_state"]
    found = last_checkpoint(context.out)
    write_file(tmp_path / "again.pt", found.model, found.ema, found.step)
    again = read_file(tmp_path / "again.pt")
    for have, seed in ((again.raw, 0), (again.ema, 1)):
        want = weights(seed)
        assert have.keys() == want.keys()
        assert all(torch.equal(have[name], want[name]) for name in want)
    assert again.step == 7


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_what_wrapped_the_network_leaves_no_trace(tmp_path: Path, prefix: str) -> None:
    wrapped = {prefix + name: tensor for name, tensor in weights(0).items()}
    imported.run(section(), make_inputs(tmp_path, {"params": wrapped, "ema_params1": wrapped}))
    trained = load_trained(tmp_path / "out", "raw")
    plain = build(MODEL, torch.Generator().manual_seed(0)).state_dict()
    assert trained.network.state_dict().keys() == plain.keys()
    assert all(torch.equal(trained.network.state_dict()[name], plain[name]) for name in plain)


def test_the_head_may_be_larger_than_the_tokenizer_and_its_vocabulary_fits_the_rows(tmp_path: Path) -> None:
    context = make_inputs(tmp_path)
    imported.run(section(), context)
    trained = load_trained(context.out, "ema")
    assert trained.model.vocabulary == 14
    tokenizer = load_tokenizer(context.inputs["tokenizer"].path / "data")
    vocabulary = full_vocabulary(tokenizer, section().tokenize, pairs=False)
    assert vocabulary.size == 12
    trained.card.check_fits(vocabulary=vocabulary)


def test_the_answer_is_of_the_averaged_weights_and_the_same_everywhere(tmp_path: Path) -> None:
    first = imported.run(section(), make_inputs(tmp_path / "a"))["answer"]
    assert first == imported.run(section(), make_inputs(tmp_path / "b"))["answer"]
    swapped = {"params": weights(1), "ema_params1": weights(0)}
    assert first != imported.run(section(), make_inputs(tmp_path / "c", swapped))["answer"]
    assert json.loads(json.dumps(first)) == first


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": {"depth": 3, "hidden": 8, "heads": 2, "bottleneck": 4}}, "depth is 3 .* but 2 in"),
        ({"model": {"depth": 2, "hidden": 8, "heads": 4, "bottleneck": 4}}, "heads is 4 .* but 2 in"),
        ({"model": {"depth": 2, "hidden": 8, "heads": 2, "bottleneck": 5}}, "bottleneck is 5 .* but 4 in"),
    ],
)
def test_another_network_than_configured_is_refused(tmp_path: Path, changes: Any, said: str) -> None:
    with pytest.raises(Failed, match=said):
        imported.run(section(**changes), make_inputs(tmp_path))
    assert not (tmp_path / "out" / "checkpoints").exists()


def test_settings_that_mean_nothing_for_imported_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="measured"):
        imported.run(section(latents={"std": "measured"}), make_inputs(tmp_path / "a"))
    used = {"length": MODEL.length, "vocabulary": "used"}
    with pytest.raises(Misconfigured, match="full"):
        imported.run(section(tokenize=used), make_inputs(tmp_path / "b"))


def test_a_head_too_small_for_the_tokenizer_is_refused(tmp_path: Path) -> None:
    small = weights(0, replace(MODEL, vocabulary=11))
    with pytest.raises(Failed, match=r"11 entries, too few for this tokenizer's 12"):
        imported.run(section(), make_inputs(tmp_path, {"params": small, "ema_params1": small}))


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        ({"params": weights(0)}, "has no 'ema_params1'"),
        ({"model": weights(0)}, "has no 'params' .* it holds 'model'"),
        ([1, 2], "holds a list"),
        (
            {"params": {**weights(0), "blocks.0.extra.weight": torch.ones(1)}, "ema_params1": {}},
            "another program",
        ),
        ({"params": weights(0), "ema_params1": dict(list(weights(0).items())[1:])}, "missing"),
        ({"params": {"w": torch.ones(1)}, "ema_params1": {}}, "no tensor unembed_kernel"),
        ({"params": {1: torch.ones(1)}, "ema_params1": {}}, "has no 'params' that maps names"),
        (both(t_emb_tokens=torch.ones(3)), r"t_emb_tokens has the shape \(3,\)"),
        (both(**{"blocks.0.attn.q_norm.weight": torch.ones(0)}), "q_norm.weight has the shape"),
        (both(proj_bias=torch.ones(6).long()), r"decode_projection.bias as torch.int64 .*float32"),
        (
            both(proj_bias=torch.full((6,), 1e300, dtype=torch.float64)),
            "decode_projection.bias as torch.float64",
        ),
        (both(proj_kernel=torch.ones(8, 6).to_sparse()), "weights of another program"),
        (both() | {"step": -1}, "has -1 as 'step'"),
        (both() | {"step": "many"}, "has 'many' as 'step'"),
    ],
)
def test_a_file_that_is_no_such_checkpoint_is_refused_by_name(tmp_path: Path, saved: Any, said: str) -> None:
    with pytest.raises(Failed, match=said):
        imported.run(section(), make_inputs(tmp_path, saved))


def test_numbers_that_are_not_finite_never_come_in(tmp_path: Path) -> None:
    bad = weights(0)
    bad["proj_bias"][0] = float("nan")
    with pytest.raises(Failed, match=r"decode_projection\.bias holds NaN"):
        imported.run(section(), make_inputs(tmp_path, {"params": weights(0), "ema_params1": bad}))


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("exploded",)


def test_a_pickle_that_is_a_program_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Failed, match=r"read safely \(it asks for \w+\.mkdir\)"):
        imported.run(section(), make_inputs(tmp_path, {"params": weights(0), "ema_params1": Bomb()}))
    assert not Path("exploded").exists()


def test_damage_anywhere_is_refused_in_one_paragraph(tmp_path: Path) -> None:
    """torch.load alone takes a changed tensor for the saved one, and breaks in many ways over changed names."""
    path = tmp_path / "whole.pt"
    torch.save(both(), path)
    whole = path.read_bytes()
    inside = whole.find(weights(0)["unembed_kernel"].numpy().tobytes()) + 5
    for damaged in (
        whole[:inside] + bytes([whole[inside] ^ 1]) + whole[inside + 1 :],
        whole.replace(b"proj_bias", b"proj_bits"),
        *(whole[: len(whole) * part // 7] for part in range(7)),
        *(whole[:at] + b"\xff" + whole[at + 1 :] for at in range(64, 1600, 97)),
    ):
        path.write_bytes(damaged)
        with pytest.raises(Failed, match=r"is damaged|read safely|it is empty"):
            read_file(path)


def test_a_file_without_checksums_breaks_as_politely(tmp_path: Path) -> None:
    path = tmp_path / "old.pt"
    torch.save(both(), path, _use_new_zipfile_serialization=False)
    assert read_file(path).raw.keys() == weights(0).keys()
    whole = path.read_bytes()
    for part in range(10):
        path.write_bytes(whole[: len(whole) * part // 10])
        with pytest.raises(Failed, match=r"read safely|it is empty"):
            read_file(path)


def test_what_was_never_fetched_is_named(tmp_path: Path) -> None:
    path = tmp_path / "asset.pt"
    path.write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(Failed, match=r"asset\.pt is no checkpoint: it is a git-LFS pointer.*`git lfs pull`"):
        read_file(path)


def test_one_file_is_wanted(tmp_path: Path) -> None:
    context = make_inputs(tmp_path)
    torch.save({}, context.inputs["checkpoint"].path / "data" / "other.pth")
    with pytest.raises(Failed, match=r"asset\.pt, other\.pth"):
        imported.run(section(), context)
