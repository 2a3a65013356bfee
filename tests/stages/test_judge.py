import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from judging import END, make_judge
from safetensors.torch import load_file, save_file

from elf.pipeline.errors import Failed, Misconfigured
from elf.stages.judge import Judge, load_judge
from elf.stages.protocol import Judged, counted_tokens, plan_batches

TEXTS = [
    "a garden",
    "the old letter market new bridge winter",
    "x",
    "",
    "the the the the the the the the the the",
    f"first part.{END}second part{END}third",
    f"{END}begins with the mark{END}",
    "long " * 40,
]


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    folder = make_judge(tmp_path_factory.mktemp("judge"))
    return load_judge(folder, window=64, precision="float32", device="cpu")


def score(judge: Judge, texts: list[str], rows: int | None) -> list[Judged]:
    tokens = judge.tokenize(texts)
    found: dict[int, Judged] = {}
    for batch in plan_batches([len(item.ids) for item in tokens], rows=rows, tokens=2048):
        found |= dict(zip(batch, judge.score([tokens[i] for i in batch]), strict=True))
    return [found[i] for i in range(len(texts))]


@pytest.mark.parametrize("rows", [1, 2, 8, None])
def test_a_score_does_not_depend_on_its_neighbours(judge: Judge, rows: int | None):
    alone = [score(judge, [text], 1)[0] for text in TEXTS]
    for texts, expected in ((TEXTS, alone), (TEXTS[::-1], alone[::-1])):
        for ours, theirs in zip(score(judge, texts, rows), expected, strict=True):
            assert ours.nll == pytest.approx(theirs.nll, rel=1e-5)
            assert (ours.counted, ours.tokens, ours.entropy) == (
                theirs.counted,
                theirs.tokens,
                theirs.entropy,
            )


def test_nll_is_that_of_the_library(judge: Judge):
    ids = torch.tensor([judge.tokenize(["the old letter"])[0].ids])
    with torch.no_grad():
        mean = judge.model(input_ids=ids, labels=ids).loss
    scored = score(judge, ["the old letter"], None)[0]
    assert scored.nll == pytest.approx(float(mean) * 13, rel=1e-5)
    assert scored.counted == 13


def test_rules_of_first_token_window_and_empties(judge: Judge):
    _, _, one, empty, *_, long = score(judge, TEXTS, None)
    assert (one.tokens, one.counted, one.nll, one.entropy) == (1, 0, 0.0, 0.0)
    assert (empty.tokens, empty.counted, empty.nll, empty.entropy) == (0, 0, 0.0, None)
    assert (long.tokens, long.counted, long.truncated) == (64, 63, True)


def test_only_the_first_end_mark_counts(judge: Judge):
    inside, leading = score(judge, TEXTS[5:7], None)
    assert (inside.tokens, inside.end_marks, inside.counted) == (29, 2, 27)
    assert (leading.tokens, leading.end_marks, leading.counted) == (22, 2, 20)
    ends = frozenset({0})
    assert counted_tokens([5, 0, 6, 0, 0], ends) == [True, True, True, False, False]
    assert counted_tokens([0, 5, 0], ends) == [True, True, False]
    tokens = judge.tokenize([TEXTS[5]])[0]
    nlls = judge.token_nlls([tokens.ids])[0]
    second = [i for i, token in enumerate(tokens.ids) if token == 0][1]
    assert inside.nll == pytest.approx(float(nlls.double().sum() - nlls[second - 1]), rel=1e-6)


def test_a_window_beyond_the_judge_is_refused(tmp_path: Path):
    folder = make_judge(tmp_path / "judge", window=16)
    with pytest.raises(Misconfigured, match=r"window is 17.*16 tokens"):
        load_judge(folder, window=17, precision="float32", device="cpu")


def test_a_folder_without_a_model_is_refused(tmp_path: Path):
    with pytest.raises(Failed, match="cannot be loaded"):
        load_judge(tmp_path, window=16, precision="float32", device="cpu")


def test_batches_hold_every_text_once_longest_first():
    lengths = [5, 0, 1000, 7, 1, 1500, 5]
    assert plan_batches(lengths, rows=2, tokens=1) == [[5, 2], [3, 0], [6], [1, 4]]
    assert plan_batches(lengths, rows=None, tokens=2048) == [[5], [2, 3], [0, 6], [1, 4]]
    assert plan_batches([], rows=None, tokens=2048) == []


def test_sixty_four_copies_score_well_and_have_the_entropy_of_one(judge: Judge):
    one, many = score(judge, [TEXTS[1]], None)[0], score(judge, [TEXTS[1]] * 64, None)
    total = sum(item.nll for item in many) / sum(item.counted for item in many)
    assert math.exp(total) == pytest.approx(math.exp(one.nll / one.counted), rel=1e-5)
    assert {item.entropy for item in many} == {one.entropy}


def _without_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["transformer.h.0.attn.c_proj.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def _cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])


def _pointer(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")


def _without_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_without_a_tensor, r"lacks weights, transformer\.h\.0\.attn\.c_proj\.weight among 1"),
        (_cut, r"cannot be loaded.*model\.safetensors is damaged: by its header"),
        (_pointer, r"cannot be loaded.*model\.safetensors is no safetensors file: .*`git lfs pull`"),
        (_without_tokenizer, "vocabulary is missing|cannot be loaded"),
    ],
)
def test_a_judge_that_is_not_whole_gives_no_number(
    tmp_path: Path, damage: Callable[[Path], None], said: str
) -> None:
    folder = make_judge(tmp_path / "judge")
    damage(folder)
    with pytest.raises(Failed, match=said):
        load_judge(folder, window=16, precision="float32", device="cpu")


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_a_judge_of_quantised_weights_gives_no_number(tmp_path: Path, dtype: torch.dtype) -> None:
    folder = make_judge(tmp_path / "judge")
    name = "transformer.h.0.attn.c_proj.weight"
    for stored in (name, name.removeprefix("transformer.")):
        tensors = load_file(folder / "model.safetensors")
        tensors = {stored if each == name else each: tensor for each, tensor in tensors.items()}
        tensors[stored] = tensors[stored].to(dtype)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        with pytest.raises(Failed, match=rf"holds {stored} as [IF]8.*unquantised"):
            load_judge(folder, window=16, precision="float32", device="cpu")


def test_a_tokenizer_of_another_judge_is_refused(tmp_path: Path) -> None:
    folder = make_judge(tmp_path / "judge")
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    tensors = {name: t[:5].contiguous() if "wte" in name else t for name, t in tensors.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 5}))
    judge = load_judge(folder, window=16, precision="float32", device="cpu")
    with pytest.raises(Failed, match="its model knows 5 ids"):
        judge.tokenize(TEXTS)


class Evil:
    """Runs when it is read as a pickle."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


def test_weights_in_a_pickle_are_refused_unread(tmp_path: Path) -> None:
    folder, mark = make_judge(tmp_path / "judge"), tmp_path / "it-ran"
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Evil(mark)}, folder / "pytorch_model.bin")
    with pytest.raises(Failed, match="weights in safetensors"):
        load_judge(folder, window=16, precision="float32", device="cpu")
    assert not mark.exists()


def test_code_in_the_folder_is_refused_unrun(tmp_path: Path) -> None:
    folder, mark = make_judge(tmp_path / "judge"), tmp_path / "it-ran"
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "mine",
        "auto_map": {name: f"code.{name}" for name in ("AutoConfig", "AutoModelForCausalLM")},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n")
    with pytest.raises(Failed, match="no code of it is run"):
        load_judge(folder, window=16, precision="float32", device="cpu")
    assert not mark.exists()
