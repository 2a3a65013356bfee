"""Operations of sampling, and of the judge that reads texts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from elf.cache.errors import Damaged
from elf.stages.counted import Counted, Lineage, Part, Untold, fact, read_network, setting, whole
from elf.stages.counted_tokens import count_token_sampling, read_token_network
from elf.stages.json_files import read_json, read_json_lines
from elf.stages.lineage import Node
from elf.stages.model.config import SamplerConfig
from elf.stages.model.flops import forward_flops, sample_flops
from elf.stages.sample_settings import steps_read
from elf.stages.scores import PER_TEXT
from elf.stages.texts import SETTINGS


def count_sampling(node: Node, lineage: Lineage) -> Counted:
    """Of a sample step: every text by every pass that its guidance asks for, then decoded. Raises Untold."""
    assert node.folder is not None
    model = lineage.folder(node, "model")
    if (of_tokens := read_token_network(model)) is not None:
        return count_token_sampling(node, lineage, of_tokens)
    network = read_network(model)
    sampler = _sampler(node.folder)
    tokens = lineage.above(node, "tokens")
    source = None if tokens is None else setting(tokens, "tokenize", "max_source")
    length, texts = network.model.length, fact(node, "texts")
    one = forward_flops(network.model, length, self_condition=sampler.self_condition)
    # Of pairs only the positions of a text are decoded.
    spared = one.decode_head * (source or 0) / length
    a_text = sample_flops(network.model, sampler, length, conditioned=source is not None) - spared
    parts = [Part("sampling", texts, texts * a_text, True)]
    assert node.manifest is not None
    followed = whole(node.manifest.config.get("trajectories", 0), "its trajectories are no count")
    if followed:
        reading = one.trunk + one.attention + one.decode_head - spared
        again = followed * (a_text + len(steps_read(sampler.steps)) * reading)
        parts.append(Part("trajectories", followed, again, True))
    return Counted(texts * length, tuple(parts))


def _sampler(folder: Path) -> SamplerConfig:
    try:
        told = read_json(folder / SETTINGS)
        return SamplerConfig(**{each.name: told[each.name] for each in fields(SamplerConfig)})
    except (Damaged, ValueError, KeyError, TypeError) as error:
        raise Untold("its settings.json describes no sampler that is known here") from error


@dataclass(frozen=True, slots=True)
class JudgeShape:
    """A causal language model: ``block`` weights of a layer's matrices, ``inner`` width of its heads together."""

    layers: int
    block: int
    inner: int
    head: int

    def flops(self, tokens: int) -> float:
        """Of a text of so many tokens: every position sees a whole row, as a mask has it."""
        return tokens * (
            2.0 * (self.layers * self.block + self.head) + 4.0 * self.layers * tokens * self.inner
        )


def count_judging(node: Node, lineage: Lineage) -> Counted:
    """Of an evaluate step: each text through the judge, padding apart. Raises Untold."""
    assert node.folder is not None
    if setting(node, "judge") is None:
        return Counted()
    shape = judge_shape(lineage.folder(node, "judge") / "data")
    try:
        judged = [line["judged"] for line in read_json_lines(node.folder / PER_TEXT)]
        lengths = [each["tokens"] for each in judged if each is not None]
    except (Damaged, KeyError, TypeError) as error:
        raise Untold("its per_text.jsonl cannot be read") from error
    read = [each for each in lengths if each > 1]
    return Counted(sum(lengths), (Part("judge", len(read), sum(map(shape.flops, read)), False),))


def judge_shape(folder: Path) -> JudgeShape:
    """From the ``config.json`` of a judge. Raises Untold where it is of no known kind."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return _gpt2(config) if "n_embd" in config else _llama(config)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Untold("the kind of its judge is not known here") from error


def _gpt2(config: Mapping[str, Any]) -> JudgeShape:
    width = int(config["n_embd"])
    feed = int(config.get("n_inner") or 4 * width)
    block = 4 * width * width + 2 * width * feed
    return JudgeShape(int(config["n_layer"]), block, width, width * int(config["vocab_size"]))


def _llama(config: Mapping[str, Any]) -> JudgeShape:
    width, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    each = int(config.get("head_dim") or width // heads)
    shared = int(config.get("num_key_value_heads") or heads)
    block = 2 * width * each * (heads + shared) + 3 * width * int(config["intermediate_size"])
    return JudgeShape(
        int(config["num_hidden_layers"]), block, heads * each, width * int(config["vocab_size"])
    )
