"""The pretrain stage: it learns, says how well, and comes out the same however often it is killed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save
from toy_encoders import ONE, WORDS, make_sentinel_rows, texts, tree
from transformers import T5ForConditionalGeneration

from elf.cache.store import Artifact
from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.progress import LineProgress
from elf.pipeline.stage import StageContext
from elf.stages import pretrain
from elf.stages.config import Encode, Pretrain
from elf.stages.encode import run as encode
from elf.stages.encoder import describe_encoder, load_encoder
from elf.stages.pretrain import Corpus, Trainer, learning_rate
from elf.stages.span_corruption import IGNORED

SMALL = Pretrain(width=16, layers=1, heads=2, feed_forward=24, steps=20, batch=4)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return make_sentinel_rows(tmp_path_factory.mktemp("rows") / "tokens", texts(30), length=16)


def run(tokens: Artifact, out: Path, section: Pretrain = SMALL) -> dict[str, Any]:
    out.mkdir(exist_ok=True)
    return dict(pretrain.run(section, StageContext(out, {"tokens": tokens}, ONE, LineProgress())))


def trainer(tokens: Artifact, out: Path, section: Pretrain = SMALL) -> Trainer:
    out.mkdir(exist_ok=True)
    return Trainer(section, Corpus.open(tokens.path, section), out, torch.device("cpu"))


def test_it_learns_a_language_that_can_be_learnt(tmp_path: Path) -> None:
    """Every word is followed by the next one: what is hidden can be told from what is not."""
    count = len(WORDS)
    documents = [" ".join(WORDS[(start + i) % count] for i in range(31)) for start in range(count)]
    rows = make_sentinel_rows(tmp_path / "tokens", documents, length=16)
    section = Pretrain(width=32, layers=1, heads=2, feed_forward=64, steps=150, batch=16, lr=2e-2)
    facts = run(rows, tmp_path / "out", section)
    assert facts["loss_last"] < facts["loss_first"] / 2
    assert facts["heldout_nll"] < facts["unigram_nll"] - 0.5
    assert facts["unigram_nll"] == pytest.approx(np.log(count), abs=0.3)
    assert facts["heldout_tokens"] > 10


def test_the_folder_is_a_t5_with_its_tokenizer(tokens: Artifact, tmp_path: Path) -> None:
    facts = run(tokens, tmp_path / "out")
    data = tmp_path / "out" / "data"
    model = T5ForConditionalGeneration.from_pretrained(data)
    assert sum(p.numel() for p in model.parameters()) == facts["parameters"]
    assert model.config.vocab_size == facts["vocabulary"] == len(WORDS) + 3 + 4
    assert (data / "tokenizer.json").read_bytes() == (
        tokens.path / "tokenizer" / "tokenizer.json"
    ).read_bytes()
    curve = [json.loads(line) for line in (tmp_path / "out" / "curve.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in curve] == list(range(20))
    assert {name.split("/")[0] for name in tree(tmp_path / "out")} == {"data", "curve.jsonl"}


def test_without_a_step_its_embeddings_are_a_fixed_gaussian_table(tokens: Artifact, tmp_path: Path) -> None:
    drawn = SMALL.model_copy(update={"steps": 0, "width": 64})
    facts = run(tokens, tmp_path / "out", drawn)
    assert (facts["loss_first"], facts["loss_last"]) == (None, None)
    assert facts["heldout_nll"] > 0
    info = describe_encoder(tmp_path / "out" / "data", layer=0, compute="float32")
    encoder = load_encoder(info)
    ids = torch.arange(info.vocabulary)
    table = encoder.states(ids[None])[0]
    assert float(table.mean()) == pytest.approx(0, abs=0.1)
    assert float(table.std()) == pytest.approx(1, abs=0.1)
    assert torch.equal(encoder.states(ids.flip(0)[None])[0].flip(0), table), "a token alone says its vector"
    run(tokens, tmp_path / "again", drawn)
    assert tree(tmp_path / "out") == tree(tmp_path / "again")
    other = run(tokens, tmp_path / "other", drawn.model_copy(update={"seed": 1}))
    assert other["heldout_nll"] != facts["heldout_nll"]


def test_the_encode_stage_takes_it(tokens: Artifact, tmp_path: Path) -> None:
    from toy_training import finish

    facts = run(tokens, tmp_path / "out")
    made = finish(tmp_path / "out", "pretrain", facts, {})
    (tmp_path / "store").mkdir()
    context = StageContext(tmp_path / "store", {"tokens": tokens, "encoder": made}, ONE, LineProgress())
    stored = encode(Encode(), context)
    assert (stored["width"], stored["length"]) == (16, 16)
    encoder = load_encoder(describe_encoder(tmp_path / "out" / "data", layer=None, compute="float32"))
    model = T5ForConditionalGeneration.from_pretrained(tmp_path / "out" / "data").eval()
    ids = torch.arange(2, 14)[None]
    with torch.no_grad():
        theirs = model.get_encoder()(input_ids=ids).last_hidden_state
    torch.testing.assert_close(encoder.states(ids), theirs, rtol=1e-5, atol=1e-5)


class Killed(BaseException):
    """As sudden as kill -9, for whatever runs in this process."""


@pytest.mark.parametrize("moments", [[1], [3], [19], [5, 6, 13]])
def test_a_killed_run_ends_with_the_same_bytes(
    tokens: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moments: list[int]
) -> None:
    facts = run(tokens, tmp_path / "whole")
    advance = Trainer.advance
    for moment in moments:

        def until(self: Trainer, moment: int = moment) -> float:
            if self.step >= moment:
                raise Killed
            return advance(self)

        monkeypatch.setattr(Trainer, "advance", until)
        with pytest.raises(Killed):
            run(tokens, tmp_path / "killed")
    monkeypatch.setattr(Trainer, "advance", advance)
    (tmp_path / "killed" / ".tmp-1-left").write_bytes(b"half a checkpoint")
    assert run(tokens, tmp_path / "killed") == facts
    assert tree(tmp_path / "killed") == tree(tmp_path / "whole")


def test_a_run_goes_on_from_its_checkpoint(tokens: Artifact, tmp_path: Path) -> None:
    first = trainer(tokens, tmp_path / "out")
    for _ in range(7):
        first.advance()
    second = trainer(tokens, tmp_path / "out")
    second.restore()
    assert second.step == 6  # a tenth of 20 steps apart
    assert second.curve == first.curve[:6]


def test_a_damaged_checkpoint_is_named(tokens: Artifact, tmp_path: Path) -> None:
    first = trainer(tokens, tmp_path / "out")
    for _ in range(3):
        first.advance()
    [checkpoint] = (tmp_path / "out").glob("*.safetensors")
    whole = checkpoint.read_bytes()
    for damaged in (whole[:-100], b"version https://git-lfs", save({"a": torch.ones(1)})):
        checkpoint.write_bytes(damaged)
        with pytest.raises(Failed, match=r"checkpoint.* cannot be gone on from.*Delete it"):
            trainer(tokens, tmp_path / "out").restore()


def test_killed_while_it_saves_the_folder(
    tokens: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = run(tokens, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(pretrain.shutil, "copyfile", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            run(tokens, tmp_path / "killed")
    assert run(tokens, tmp_path / "killed") == facts
    assert tree(tmp_path / "killed") == tree(tmp_path / "whole")


def noted(
    rows: Artifact, out: Path, section: Pretrain, capsys: pytest.CaptureFixture[str]
) -> tuple[float, float, str]:
    """The loss on the rows held out, that of the unigram, and what the run said."""
    facts = run(rows, out, section)
    told = capsys.readouterr()
    return facts["heldout_nll"], facts["unigram_nll"], told.out + told.err


def test_a_run_that_learnt_too_little_says_so(tokens: Artifact, tmp_path: Path, capsys: Any) -> None:
    model, unigram, said = noted(tokens, tmp_path / "one", SMALL.model_copy(update={"steps": 1}), capsys)
    assert model > unigram
    assert "After 1 step the encoder guesses hidden tokens worse than their frequencies alone would" in said
    assert f"({model:.4g} nats a token on the rows held out, against {unigram:.4g})" in said
    assert "enough to see that everything runs; for good texts raise pretrain.steps." in said
    model, unigram, said = noted(tokens, tmp_path / "none", SMALL.model_copy(update={"steps": 0}), capsys)
    assert model > unigram
    assert "guesses hidden tokens" not in said
    count = len(WORDS)
    documents = [" ".join(WORDS[(start + i) % count] for i in range(31)) for start in range(count)]
    rows = make_sentinel_rows(tmp_path / "tokens", documents, length=16)
    section = Pretrain(width=32, layers=1, heads=2, feed_forward=64, steps=150, batch=16, lr=2e-2)
    model, unigram, said = noted(rows, tmp_path / "much", section, capsys)
    assert model < unigram
    assert "guesses hidden tokens" not in said


def test_the_seed_decides(tokens: Artifact, tmp_path: Path) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    run(tokens, tmp_path / "one")
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    run(tokens, tmp_path / "two")
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    run(tokens, tmp_path / "other", SMALL.model_copy(update={"seed": 1}))
    assert tree(tmp_path / "one") != tree(tmp_path / "other")


def test_held_out_rows_are_never_trained_on(tokens: Artifact, tmp_path: Path) -> None:
    state = trainer(tokens, tmp_path / "out")
    corpus = state.corpus
    seen = {int(row) for step in range(200) for row in state.order.batch(step, 4)}
    assert seen == set(range(corpus.train))
    assert corpus.heldout.tolist() == list(range(corpus.train, corpus.rows.rows))
    assert corpus.heldout.size == max(corpus.rows.rows // 10, 1)


def test_padding_is_neither_seen_nor_asked_for(tokens: Artifact) -> None:
    corpus = Corpus.open(tokens.path, SMALL)
    lengths = corpus.rows.lengths(np.arange(corpus.rows.rows))
    short = int(np.argmin(lengths))
    assert lengths[short] < 16
    batch = corpus.batch(np.array([short, 0]), 0, 0)
    kept = batch["attention_mask"][0].sum()
    hidden, count = corpus.corruption.spans(int(lengths[short]))
    assert kept == int(lengths[short]) - hidden + count + 1
    assert (batch["labels"][0] != IGNORED).sum() == hidden + count + 1


def test_what_is_not_finite_stops(tokens: Artifact, tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"Step \d+ of pretraining has loss .*pretrain\.lr"):
        run(tokens, tmp_path / "out", SMALL.model_copy(update={"lr": 1e30}))
    assert not (tmp_path / "out" / "data").exists()


def test_too_little_to_train_on_is_refused(tokens: Artifact, tmp_path: Path) -> None:
    one = make_sentinel_rows(tmp_path / "one", ["w1 w2"], length=8)
    with pytest.raises(Failed, match="at least 2 rows"):
        run(one, tmp_path / "out")
    with pytest.raises(Misconfigured, match="multiple of the heads"):
        run(tokens, tmp_path / "out", SMALL.model_copy(update={"heads": 3}))
    bare = make_sentinel_rows(tmp_path / "bare", texts(9), length=8, sentinels=0)
    with pytest.raises(Failed, match="no sentinels"):
        run(bare, tmp_path / "out")


def test_the_rate_rises_then_falls() -> None:
    rates = [learning_rate(step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == 1
    assert rates[10] == pytest.approx(1)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.1, abs=1e-2)
    assert learning_rate(0, 1) == 1
