"""Masks against what the frozen encoder made of them, and against the authors' collation of rows."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import T5Config, T5EncoderModel

from elf.stages.model.draws import chosen
from elf.stages.model.masks import additive, encoder_mask, is_condition, is_valid
from tests.golden.reading import Goldens, close, tolerance


def lengths(goldens: Goldens, record: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    given = goldens.part(record["file"], "in/")
    condition, valid = given["is_cond"].bool(), given["is_valid"].bool()
    sizes = condition.sum(dim=1), valid.sum(dim=1)
    assert torch.equal(is_condition(sizes[0], condition.shape[1]), condition)
    assert torch.equal(is_valid(sizes[1], valid.shape[1]), valid)
    return *sizes, given["ids"]


@pytest.mark.parametrize("kind", ["plain", "label_drop"])
def test_encoder_states(kind: str, goldens: Goldens) -> None:
    """Hidden states under the mask, fully masked queries among them."""
    record = goldens.index["cases"].get("t5")
    if record is None:
        pytest.skip("no encoder recorded")
    condition_B, length_B, ids = lengths(goldens, record)
    dropped = goldens.part(record["file"], "in/")["label_drop"].bool()
    drop_B = dropped if kind == "label_drop" else None
    mask = encoder_mask(condition_B, length_B, ids.shape[1], drop_B=drop_B)
    assert torch.equal(mask.float(), goldens.part(record["file"], "mask3/")[kind])
    encoder = T5EncoderModel(T5Config(**record["t5_config"])).eval()
    encoder.load_state_dict(goldens.part(record["file"], "w/"), strict=False)
    with torch.no_grad():
        hidden = encoder(input_ids=ids, attention_mask=additive(mask)).last_hidden_state
    out = goldens.part(record["file"], "out/")
    close(kind, hidden, out[f"hidden_{kind}"], tolerance(torch.float32))
    latents = (hidden - record["latent_mean"]) / record["latent_std"]
    close(f"x0 {kind}", latents, out[f"x0_{kind}"], tolerance(torch.float32))
    for where, row, _ in record["fully_masked"]:
        assert where != kind or not mask[row].any(dim=-1).all()


def test_collation(goldens: Goldens) -> None:
    """Masks of [condition ; target ; padding] rows, condition and whole cut to their maxima."""
    cases = goldens.index["cases"]
    names = [name for name in cases if name.startswith("collate/") and "data" in cases[name]]
    if not names:
        pytest.skip("no collation recorded")
    for name in names:
        record = cases[name]
        expected = goldens.part(record["file"], f"{name.split('/')[1]}/")
        length, longest = record["max_seq_length"], record.get("max_input_seq_length", 0)
        conditions = [len(row.get("condition_input_ids", [])[:longest]) for row in record["data"]]
        wholes = [
            min(length, condition + len(row["input_ids"]))
            for condition, row in zip(conditions, record["data"], strict=True)
        ]
        condition_B, length_B = torch.tensor(conditions), torch.tensor(wholes)
        assert torch.equal(is_condition(condition_B, length).float(), expected["cond_seq_mask"])
        assert torch.equal(is_valid(length_B, length).float(), expected["attention_mask"])
        mask = encoder_mask(condition_B, length_B, length)
        assert torch.equal(mask.float(), expected["encoder_attention_mask"]), name


def test_dropped_conditions(goldens: Goldens) -> None:
    """Which rows lose their condition, by their uniform number."""
    record = goldens.index["cases"].get("collate/label_drop")
    if record is None:
        pytest.skip("no dropped conditions recorded")
    given = goldens.part(record["file"], "prepare/")
    for number, share in enumerate(record["label_drop_prob"]):
        assert torch.equal(chosen(given["uniform"], share), given[f"label_drop_{number}"].bool()), share
