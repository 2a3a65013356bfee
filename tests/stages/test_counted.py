"""Operations of other people's networks on paper, against torch's count of what ran."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from costly import Costly
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from toy_encoders import make_sentinel_rows, pairs

from elf.stages.config import Pretrain
from elf.stages.counted import Untold
from elf.stages.counted_pretraining import row_of_pretraining, sides_of_row
from elf.stages.counted_texts import judge_shape
from elf.stages.ledger import keep_ledger
from elf.stages.order import Order
from elf.stages.pretrain import Corpus, make_model
from elf.stages.workload import read_shape

LENGTH = 24


def counted(run: Callable[[], Any]) -> int:
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def ids(length: int) -> torch.Tensor:
    return torch.arange(length)[None] % 7


def test_a_row_of_pretraining() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    section = Pretrain(width=16, layers=2, heads=2, feed_forward=40)
    config = T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=40, num_layers=2, num_heads=2, pad_token_id=0)
    config.decoder_start_token_id = 0
    model = T5ForConditionalGeneration(config).eval()
    # 15 % of 24 tokens are 4, in one span: 21 positions with its sentinel, 5 with sentinel; an end mark each.
    given, wanted = ids(LENGTH - 4 + 1 + 1), ids(4 + 1 + 1)
    assert (given.shape[1], wanted.shape[1]) == sides_of_row(section, LENGTH)
    assert counted(lambda: model(input_ids=given, labels=wanted)) == row_of_pretraining(section, 22, 6, 50)


def test_a_pretraining_is_counted_as_its_batches_went_and_its_tokens_without_padding(tmp_path: Path) -> None:
    section = Pretrain(width=16, layers=1, heads=2, feed_forward=24, steps=6, batch=4)
    tokens = make_sentinel_rows(tmp_path / "made", pairs(30), length=19, max_source=9)
    corpus = Corpus.open(tokens.path, section)
    model = make_model(section, corpus).eval()
    held = [corpus.heldout[at : at + 4] for at in range(0, corpus.heldout.size, 4)]
    drawn = [Order(corpus.train, section.seed).batch(step, section.batch) for step in range(section.steps)]
    forward = [
        sum(counted(lambda each=each: model(**corpus.batch(each, 0, 0))) for each in batches)
        for batches in (drawn, held)
    ]
    costly = Costly(tmp_path / "store")
    costly.tokens(files=tokens.path)
    facts = {"heldout_rows": corpus.heldout.size, "vocabulary": corpus.vocabulary}
    inputs, config = {"tokens": "tokens"}, section.model_dump(mode="json")
    made = costly.add("pretrain", "pretrain", inputs, facts=facts, config=config)
    (line,) = [each for each in keep_ledger({"pretrain": made}).lines if each.stage == "pretrain"]
    assert [part.flops for part in line.counted.parts] == [3 * forward[0], forward[1]]
    assert line.exact
    lengths = [corpus.rows.lengths(batch) for batch in drawn]
    assert line.counted.tokens == sum(int(each[each > 1].sum()) for each in lengths)
    assert (line.counted.tokens or 0) < section.steps * section.batch * 19


def test_an_encoder_up_to_its_last_layer(tmp_path: Path) -> None:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(vocab_size=50, d_model=16, d_kv=6, d_ff=40, num_layers=3, num_heads=2)
    T5EncoderModel(config).save_pretrained(tmp_path)
    shape = read_shape(tmp_path, None)
    assert shape is not None
    model = T5EncoderModel(config).eval()
    assert counted(lambda: model(input_ids=ids(LENGTH))) == LENGTH * shape.flops(LENGTH)


GPT2 = {"n_embd": 12, "n_layer": 2, "n_head": 3, "vocab_size": 31, "n_positions": 64}
LLAMA = {
    "hidden_size": 16,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 31,
}


@pytest.mark.parametrize(("kind", "settings"), [("GPT2", GPT2), ("Llama", LLAMA)])
def test_a_judge_over_a_text(kind: str, settings: Mapping[str, int], tmp_path: Path) -> None:
    import transformers

    name = {"GPT2": "GPT2LMHeadModel", "Llama": "LlamaForCausalLM"}[kind]
    config = getattr(transformers, f"{kind}Config")(**settings)
    model = getattr(transformers, name)(config).eval()
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict(), default=str))
    shape = judge_shape(tmp_path)
    assert counted(lambda: model(input_ids=ids(LENGTH), use_cache=False)) == shape.flops(LENGTH)


def test_a_judge_of_another_kind_is_not_guessed(tmp_path: Path) -> None:
    with pytest.raises(Untold, match="kind of its judge"):
        judge_shape(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(Untold, match="kind of its judge"):
        judge_shape(tmp_path)
