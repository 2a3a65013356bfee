"""Loading what was trained: the right weights, all of them, or a sentence that says what differs."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from toy_training import TRAIN, Corpus

from elf.pipeline.errors import Failed
from elf.pipeline.progress import LineProgress
from elf.pipeline.stage import Compute, StageContext
from elf.stages import checkpoint as checkpoints
from elf.stages import train
from elf.stages.model.network import Network, build
from elf.stages.rows import TokenRows
from elf.stages.train_settings import Train
from elf.stages.trained import Card, load_trained, load_weights


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps, and its tokens beside it."""
    folder = tmp_path_factory.mktemp("trained")
    corpus = Corpus.make(folder)
    (folder / "out").mkdir()
    section = Train.model_validate(TRAIN | {"steps": 3})
    compute = Compute(device="cpu", threads=1)
    train.run(section, StageContext(folder / "out", corpus.inputs, compute, LineProgress(every=1e9)))
    return folder


@pytest.fixture
def out(trained: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return shutil.copytree(trained / "out", tmp_path / "out")


@pytest.mark.parametrize(("weights", "file"), [("ema", "ema"), ("raw", "model")])
def test_weights_are_those_asked_for(out: Path, weights: Any, file: str) -> None:
    found = load_trained(out, weights)
    saved = load_file(out / f"checkpoints/step_3/{file}.safetensors")
    for name, parameter in found.network.state_dict().items():
        torch.testing.assert_close(parameter, saved[name], rtol=0, atol=0)
    assert not found.network.training
    assert not any(parameter.requires_grad for parameter in found.network.parameters())
    assert (found.mean, found.std) == (found.card.scale.mean, found.card.scale.std)
    assert (found.model.vocabulary, found.model.width, found.model.length) == (40, 6, 8)


def test_the_two_kinds_of_weights_have_two_digests(out: Path) -> None:
    assert load_trained(out, "ema").digest != load_trained(out, "raw").digest


def rewrite(out: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    """Save the last checkpoint again, whole, with other tensors in it."""
    found = checkpoints.read(out / "checkpoints/step_3")
    changed = replace(found, ema=change(dict(found.ema)), state={"metrics_bytes": 0})
    checkpoints.save(out / "checkpoints", changed, keep=1)


def card(out: Path, **changes: Any) -> None:
    plain = json.loads((out / "model.json").read_text())
    plain["model"] |= changes
    (out / "model.json").write_text(json.dumps(plain))


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "module._orig_mod."])
def test_a_wrappers_prefix_is_refused_by_name(out: Path, prefix: str) -> None:
    rewrite(out, lambda ema: {f"{prefix}{name}": tensor for name, tensor in ema.items()})
    with pytest.raises(
        Failed, match=rf"missing: .*unexpected: {prefix}decode_projection.bias.*without a wrapper's"
    ):
        load_trained(out, "ema")


def test_a_lost_tensor_is_named(out: Path) -> None:
    rewrite(out, lambda ema: {name: tensor for name, tensor in ema.items() if name != "flow_norm.weight"})
    with pytest.raises(Failed, match=r"of this model: missing: flow_norm\.weight\. "):
        load_trained(out, "ema")


def test_absent_averages_are_missed(out: Path) -> None:
    (out / "checkpoints/step_3/ema.safetensors").unlink()
    with pytest.raises(Failed, match=r"The ema weights cannot be loaded: .*step_3 lacks ema\.safetensors"):
        load_trained(out, "ema")
    assert load_trained(out, "raw").network


def test_no_checkpoint_is_said_so(out: Path) -> None:
    shutil.rmtree(out / "checkpoints/step_3")
    with pytest.raises(Failed, match="holds no checkpoint"):
        load_trained(out, "ema")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden": 32}, "hidden is 16 in the weights and 32 in the model"),
        ({"depth": 2}, "depth is 1 in the weights and 2 in the model"),
        ({"vocabulary": 41}, "vocabulary is 40 in the weights and 41 in the model"),
        ({"heads": 4}, "hidden / heads is 8 in the weights and 4 in the model"),
        ({"width": 7}, "width is 6 in the weights and 7 in the model"),
        ({"bottleneck": 5}, r"trunk.input_down.weight is \(4, 6\) instead of \(5, 6\)"),
    ],
)
def test_another_models_weights_are_refused_by_field(out: Path, changes: dict[str, Any], words: str) -> None:
    card(out, **changes)
    with pytest.raises(Failed, match=words):
        load_trained(out, "ema")


def test_a_description_that_is_none_is_refused(out: Path) -> None:
    card(out, colour="blue")
    with pytest.raises(Failed, match=r"does not describe a trained model: .*colour"):
        load_trained(out, "ema")


def test_the_description_comes_back(out: Path, tmp_path: Path) -> None:
    found = Card.read(out / "model.json")
    found.write(tmp_path / "again.json")
    assert Card.read(tmp_path / "again.json") == found
    assert (tmp_path / "again.json").read_bytes() == (out / "model.json").read_bytes()


def test_other_tokens_or_another_encoder_are_refused(out: Path, trained: Path) -> None:
    found = load_trained(out, "ema").card
    vocabulary = TokenRows.open(trained / "tokens").vocabulary
    found.check_fits(vocabulary=vocabulary, encoder="toy")
    for changes, words in (
        ({"size": 41, "tokenizer_size": 41}, "vocabulary size 40, but is given vocabulary size 41"),
        ({"length": 9}, "row length 8, but is given row length 9"),
        ({"end_id": 2}, "vocabulary [0-9a-f]{64}, but is given vocabulary [0-9a-f]{64}"),
    ):
        with pytest.raises(Failed, match=words):
            found.check_fits(vocabulary=replace(vocabulary, **changes))
    with pytest.raises(Failed, match="encoder toy, but is given encoder other"):
        found.check_fits(encoder="other")


def test_compiled_or_not_the_names_are_the_same(out: Path) -> None:
    """Weights are saved from the network itself, which ``module.compile()`` leaves its names."""
    network: Network = build(Card.read(out / "model.json").model, torch.Generator().manual_seed(0))
    names = list(network.state_dict())
    network.compile(backend="eager")
    assert list(network.state_dict()) == names
    load_weights(network, load_file(out / "checkpoints/step_3/model.safetensors"), source=out)
