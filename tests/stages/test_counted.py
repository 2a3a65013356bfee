"""Operations of other people's networks on paper, against torch's count of what ran."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from elf.stages.config import Pretrain
from elf.stages.counted import Untold
from elf.stages.counted_encoder import row_of_pretraining
from elf.stages.counted_texts import judge_shape
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
    assert counted(lambda: model(input_ids=given, labels=wanted)) == row_of_pretraining(section, LENGTH, 50)


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
