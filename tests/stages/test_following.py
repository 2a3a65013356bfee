"""Texts followed to their end: against a network whose answers are known, and as the sample stage keeps them."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from judging import make_context
from tokens import END, make_tokens
from torch import Tensor
from toy_sampling import LENGTH, PAIRS, make_pairs, make_text, setting

from elf.cache.store import Artifact
from elf.pipeline.config import load_experiment
from elf.pipeline.errors import Misconfigured
from elf.stages import following, sample
from elf.stages.config import Experiment
from elf.stages.following import count_differing, follow, spell
from elf.stages.latents import Scale
from elf.stages.model.config import ModelConfig, ObjectiveConfig, SamplerConfig
from elf.stages.rows import TokenRows
from elf.stages.sampling import Sampling
from elf.stages.texts import read_texts
from elf.stages.trained import Card, Trained
from elf.stages.trajectory import Followed, read_trajectory
from elf.stages.vocabulary import load_tokenizer

SHIPPED = Path(__file__).parent.parent.parent / "configs"
SIZE, WRONG = 8, 7
FINAL = [3, 4, 5, END, 6]
CLEAR_FROM = [0.0, 0.25, 0.5, 0.75, 0.0]
"""The time from which the network below says each position's final token; what lies behind the end mark is no text."""


class KnownNetwork:
    """Of D = V channels, a token being 1 in its own: x̂ is ``WRONG`` before its position's time and right from then
    on, but the first position is wrong once more at 0.25."""

    config = SimpleNamespace(guided=False, prediction="x")
    decode_vocabulary = SimpleNamespace(weight=torch.eye(SIZE), bias=torch.zeros(SIZE))

    def __call__(self, given: Tensor, t_B: Tensor, **_: Any) -> Any:
        return SimpleNamespace(h_BLH=given[:, :, :SIZE], t_B=t_B)

    def flow(self, hidden: Any) -> Tensor:
        t = float(hidden.t_B[0])
        said = [right if t >= clear else WRONG for right, clear in zip(FINAL, CLEAR_FROM, strict=True)]
        if t == 0.25:
            said[0] = WRONG
        return torch.eye(SIZE)[said].expand(len(hidden.t_B), -1, -1)

    def decode_features(self, h_BNH: Tensor) -> Tensor:
        return h_BNH


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("known") / "tokens"
    return make_tokens(folder, ["w0 w1"], words=[f"w{i}" for i in range(SIZE - 3)], length=len(FINAL))


def known(tokens: Path, **changes: Any) -> Sampling:
    model = ModelConfig(width=SIZE, vocabulary=SIZE, length=len(FINAL), depth=1, hidden=8, heads=1)
    card = Card(model, ObjectiveConfig(), Scale(0.0, 1.0), "", "toy")
    config = SamplerConfig(**({"method": "ode", "steps": 4, "grid": "uniform"} | changes))
    vocabulary = TokenRows.open(tokens).vocabulary
    return Sampling(Trained(cast("Any", KnownNetwork()), card, ""), config, vocabulary, None, "cpu")


def test_a_network_of_known_answers_is_followed_to_its_end(tokens: Path) -> None:
    sampling, made = known(tokens), [[3, 4, 5], [3, 4], [3, 6, 5, 6]]
    found = follow(sampling, load_tokenizer(tokens / "tokenizer"), 9, made)
    assert [(each.step, each.t, each.asked) for each in found.readings] == [
        (step, step / 4, step / 4) for step in range(5)
    ]
    first = found.texts[0]
    assert first.ids_TN.tolist() == [[3, 7, 7, 7], [7, 4, 7, 7], [3, 4, 5, 7], [3, 4, 5, 1], [3, 4, 5, 1]]
    assert first.settled_from.tolist() == [2, 1, 2, 3]
    assert found.settled.tolist() == [0.0, 0.25, 0.75, 1.0, 1.0]
    # A wrong token is wrong by 1 in two of 8 channels of one of 4 positions.
    wrong = np.array([3, 3, 1, 0, 0])
    assert first.x_distance == pytest.approx(np.sqrt(2 * wrong / (4 * 8)))
    noise = 2.0 * sampling.draws(9, range(3)).start_BLD[0, :4]
    end = torch.eye(SIZE)[FINAL[:4]]
    assert first.z_distance[0] == pytest.approx(float((noise - end).square().mean().sqrt()))
    assert first.z_distance[-1] == 0
    assert [text.differing for text in found.texts] == [0, 1, 2]
    assert found.pieces == {1: " </s>", 3: " w0", 4: " w1", 5: " w2", 7: " w4"}


def test_many_steps_are_read_at_sixteen_and_the_end(tokens: Path) -> None:
    sampling = known(tokens, method="sde", gamma=1.5, steps=40, grid="logit_normal")
    found = follow(sampling, load_tokenizer(tokens / "tokenizer"), 9, [[3, 4, 5]])
    times = sampling.draws(9, [0]).times_BS[0].tolist()
    assert [each.step for each in found.readings][:3] == [0, 3, 5]
    assert len(found.readings) == 17
    assert [each.t for each in found.readings] == [times[each.step] for each in found.readings]
    back = [each.t - each.asked for each in found.readings]
    assert back[0] == back[-2] == back[-1] == 0, "no step goes back from 0, nor does the last"
    assert min(back[1:-2]) > 0


@pytest.mark.parametrize(
    ("ids", "others", "count"), [([1, 2], [1, 2], 0), ([1, 2], [2, 2, 5], 2), ([], [4], 1), ([], [], 0)]
)
def test_ids_that_differ_are_counted(ids: list[int], others: list[int], count: int) -> None:
    assert count_differing(ids, others) == count


def test_pieces_are_what_tokens_add_to_a_text(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pieces = {"[PAD]": 0, "[SEP]": 1, "[UNK]": 2, "un": 3, "##ion": 4, ".": 5, "</script>": 6}
    plain = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    plain.decoder = decoders.WordPiece()
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    plain.add_special_tokens(["[PAD]", "[SEP]", "[UNK]"])
    plain.save(str(tmp_path / "tokenizer.json"))
    spelt = spell(load_tokenizer(tmp_path), np.arange(1, 7))
    assert spelt == {1: " [SEP]", 2: " [UNK]", 3: " un", 4: "ion", 5: ".", 6: " </script>"}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return make_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return make_pairs(tmp_path_factory.mktemp("pairs"))


def run(out: Path, inputs: dict[str, Artifact], batch: int | None = None, **changes: Any) -> bytes:
    sample.run(setting(**{"trajectories": 3} | changes), make_context(out, inputs, batch=batch))
    made = {path.name for path in out.iterdir() if path.name != "aux"}
    assert made == {"samples.jsonl", "settings.json", "trajectory.json"}
    return (out / "trajectory.json").read_bytes()


def ends(text: Followed) -> list[int]:
    """The last reading without its end mark."""
    ids = text.ids_TN[-1].tolist()
    return ids[:-1] if ids[-1] == END else ids


@pytest.mark.parametrize("method", ["ode", "sde"])
def test_what_is_followed_ends_as_the_samples(
    tmp_path: Path, inputs: dict[str, Artifact], method: str
) -> None:
    run(tmp_path, inputs, method=method)
    found = read_trajectory(tmp_path / "trajectory.json")
    made = [text for text in read_texts(tmp_path / "samples.jsonl") if text.seed == 0][:3]
    assert (found.seed, found.steps, len(found.readings)) == (0, 4, 5)
    assert [(text.id, tuple(ends(text))) for text in found.texts] == [(text.id, text.ids) for text in made]
    assert not any(text.differing for text in found.texts)
    assert all(text.x_distance[0] > 0 and text.x_distance[-1] == 0 for text in found.texts)


def test_it_is_the_same_in_any_batch_and_changes_no_sample(
    tmp_path: Path, inputs: dict[str, Artifact]
) -> None:
    whole = run(tmp_path / "whole", inputs)
    assert run(tmp_path / "small", inputs, batch=2) == whole
    sample.run(setting(), make_context(tmp_path / "none", inputs))
    for name in ("samples.jsonl", "settings.json"):
        assert (tmp_path / "none" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not (tmp_path / "none" / "trajectory.json").exists()


class Killed(BaseException):
    """Stands for a signal."""


@pytest.mark.parametrize("name", ["follow", "write_trajectory"])
def test_a_run_killed_while_it_follows_goes_on(
    tmp_path: Path, inputs: dict[str, Artifact], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def killed(*_: Any) -> Any:
        raise Killed

    whole = run(tmp_path / "undisturbed", inputs)
    with monkeypatch.context() as patch:
        patch.setattr(sample, name, killed)
        with pytest.raises(Killed):
            run(tmp_path / "out", inputs)
    monkeypatch.setattr(Sampling, "ids", killed)  # no text is sampled again
    assert run(tmp_path / "out", inputs) == whole
    for other in ("samples.jsonl", "settings.json"):
        assert (tmp_path / "out" / other).read_bytes() == (tmp_path / "undisturbed" / other).read_bytes()


def test_an_end_that_differs_is_told_not_hidden(
    tmp_path: Path, inputs: dict[str, Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = following.cut_at_end
    monkeypatch.setattr(following, "cut_at_end", lambda ids, end: np.append(real(ids, end), 99))
    run(tmp_path, inputs)
    assert [
        text["differing"] for text in json.loads((tmp_path / "trajectory.json").read_text())["texts"]
    ] == [1] * 3


def test_of_pairs_only_the_target_is_read(tmp_path: Path, pairs: dict[str, Artifact]) -> None:
    more: dict[str, Any] = {"seeds": (3,), "method": "ode", "input_guidance": 2.0, "trajectories": len(PAIRS)}
    run(tmp_path, pairs, **more)
    found = read_trajectory(tmp_path / "trajectory.json")
    made = read_texts(tmp_path / "samples.jsonl")
    assert [tuple(ends(text)) for text in found.texts] == [text.ids for text in made]
    assert all(text.ids_TN.shape[1] <= LENGTH - 3 for text in found.texts)
    assert not any(text.differing for text in found.texts)


def test_more_than_there_are_is_refused(
    tmp_path: Path, inputs: dict[str, Artifact], pairs: dict[str, Artifact]
) -> None:
    with pytest.raises(Misconfigured, match=r"trajectories is 10, .* makes 9 texts"):
        run(tmp_path / "a", pairs, trajectories=10)
    with pytest.raises(Misconfigured, match=r"trajectories is 6, .* makes 5 texts"):
        run(tmp_path / "b", inputs, count=5, trajectories=6)
    with pytest.raises(Misconfigured, match=r"`ode` makes 3 texts a seed, so its `trajectories` must be 3"):
        load_experiment("tiny", Experiment, ["sample.0.count=3", "sample.0.trajectories=4"], SHIPPED)
