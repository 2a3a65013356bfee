"""Recorded weights come in through the file of the authors' program as the network that the other goldens prove."""

from pathlib import Path
from typing import Any

import pytest
import torch

from elf.stages.authors import EMA, RAW, read_file, translate, write_file
from elf.stages.model.naming import config_from_authors
from tests.golden.conftest import Goldens


def _cases(goldens: Goldens) -> dict[str, dict[str, Any]]:
    """One model configuration per recorded set of whole weights."""
    cases = goldens.index["cases"].values()
    return {case["weights"]: case["model"] for case in cases if {"weights", "model"} <= case.keys()}


def test_imported_weights_are_the_proven_network(goldens: Goldens, tmp_path: Path) -> None:
    compared = 0
    for name, model in _cases(goldens).items():
        recorded = goldens.part(name, "w/")
        torch.save({RAW: recorded, EMA: recorded}, tmp_path / f"{name}.pt")
        found = read_file(tmp_path / f"{name}.pt")
        network = goldens.network(name, model, torch.float32)
        assert config_from_authors(found.ema, length=network.config.length) == network.config
        ours = translate(found.ema, tmp_path)
        assert ours.keys() == network.state_dict().keys()
        assert all(torch.equal(ours[key], tensor) for key, tensor in network.state_dict().items())
        write_file(tmp_path / f"{name}-again.pt", ours, ours, 3)
        again = read_file(tmp_path / f"{name}-again.pt").raw
        assert again.keys() == recorded.keys()
        assert all(torch.equal(again[key], tensor) for key, tensor in recorded.items())
        compared += 1
    if not compared:
        pytest.skip("this folder holds no whole weights")
