"""Operations of the baselines: of training a model of tokens, and of sampling one."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from elf.cache.errors import Damaged
from elf.pipeline.errors import Failed
from elf.stages.counted import Counted, Lineage, Part, Untold, fact, setting, whole
from elf.stages.json_files import read_json, stream_json_lines
from elf.stages.lineage import Node
from elf.stages.model.flops import token_flops, token_sample_flops
from elf.stages.model.token_config import TokenConfig, TokenSamplerConfig
from elf.stages.pace import METRICS
from elf.stages.rows import TokenRows
from elf.stages.texts import SETTINGS


def read_token_network(folder: Path) -> TokenConfig | None:
    """The model of tokens that ``model.json`` describes; None where it describes none."""
    try:
        card = read_json(folder / "model.json")
        return TokenConfig(**card["model"]) if "method" in card else None
    except (Damaged, ValueError, KeyError, TypeError):
        return None


def count_token_training(node: Node, lineage: Lineage, model: TokenConfig) -> Counted:
    """Of a baseline: the blocks on every row, the head on the tokens that were asked for. Raises Untold."""
    assert node.folder is not None
    one = token_flops(model, model.length)
    rows = fact(node, "steps") * whole(setting(node, "batch"), "its settings have no batch")
    tokens, looks = _counts(node.folder / METRICS)
    # Of a masked model about half of the counted tokens are masked, and these alone go through the head.
    asked = tokens * (1.0 if model.causal else 0.5) / model.length
    parts = [
        Part(
            "gradient passes",
            rows,
            3.0 * (rows * (one.trunk + one.attention) + asked * one.decode_head),
            model.causal,
        )
    ]
    held = lineage.above(node, "heldout_tokens")
    if looks and held is not None:
        wanted = whole(setting(node, "heldout", "rows"), "its settings do not say how many rows are held out")
        looked = 2 * looks * min(wanted, fact(held, "rows"))
        head = (1.0 if model.causal else 0.5) * one.decode_head
        parts.append(Part("held-out", looked, looked * (one.trunk + one.attention + head), False))
    return Counted(fact(node, "tokens"), tuple(parts))


def _counts(path: Path) -> tuple[int, int]:
    """Tokens that counted in all steps, and measurements of the held-out rows."""
    tokens = looks = 0
    try:
        for line in stream_json_lines(path):
            if "heldout_loss" in line:
                looks += 1
            else:
                tokens += line["positions"]
    except (Damaged, KeyError, TypeError) as error:
        raise Untold("its metrics.jsonl cannot be read") from error
    return tokens, looks


def count_token_sampling(node: Node, lineage: Lineage, model: TokenConfig) -> Counted:
    """As many operations as a sampler takes on average: it ends where all texts of a batch have. Raises Untold."""
    assert node.folder is not None
    texts, sampler = fact(node, "texts"), _sampler(node.folder)
    a_text = token_sample_flops(model, sampler, model.length, given=_given(node, lineage, model))
    return Counted(texts * model.length, (Part("sampling", texts, texts * a_text, False),))


def _given(node: Node, lineage: Lineage, model: TokenConfig) -> float:
    """Positions of a row that are its condition: on average over the rows, or what an autoregressive model leaves to
    every condition. Raises Untold."""
    tokens = lineage.above(node, "tokens")
    source = None if tokens is None else setting(tokens, "tokenize", "max_source")
    if source is None:
        return 0.0
    if model.causal:
        return float(source)
    try:
        rows = TokenRows.open(lineage.folder(node, "tokens"))
        return float(rows.condition_lengths(np.arange(rows.rows)).mean()) if rows.rows else float(source)
    except (Damaged, Failed, OSError) as error:
        raise Untold("the rows it writes on from cannot be read") from error


def _sampler(folder: Path) -> TokenSamplerConfig:
    try:
        told: dict[str, Any] = read_json(folder / SETTINGS)
        known = {each.name for each in fields(TokenSamplerConfig)}
        return TokenSamplerConfig(**{name: value for name, value in told.items() if name in known})
    except (Damaged, ValueError, TypeError) as error:
        raise Untold("its settings.json describes no sampler that is known here") from error
