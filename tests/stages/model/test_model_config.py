"""Refused values say what would be right; the configuration costs no torch."""

import subprocess
import sys
from typing import Any

import pytest

from elf.stages.model.config import DistillConfig, ModelConfig, ObjectiveConfig, SamplerConfig
from tests.stages.model.tiny import SHAPE, tiny_config


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"hidden": 15}, "multiple of heads"),
        ({"hidden": 6, "heads": 2}, "must be even"),
        ({"width": 0}, "above 0"),
        ({"bottleneck": 0}, "null for none"),
        ({"time_tokens": 0}, "at least 1"),
        ({"mode_tokens": -1}, "0 \\(none\\) or more"),
        ({"dropout": 1.0}, "below 1"),
        ({"prediction": "y"}, "'x', 'v', 'eps'"),
    ],
)
def test_model_refuses(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ModelConfig(**(SHAPE | changed))


@pytest.mark.parametrize(
    ("kind", "changed", "says"),
    [
        (ObjectiveConfig, {"decode_share": 1.5}, "between 0 and 1"),
        (ObjectiveConfig, {"noise_scale": 0.0}, "above 0"),
        (ObjectiveConfig, {"guidance_low": 3.0, "guidance_high": 1.0}, "at most guidance_high"),
        (ObjectiveConfig, {"padding": "none"}, "'pad', 'eos'"),
        (SamplerConfig, {"steps": 0}, "at least 1 step"),
        (SamplerConfig, {"gamma": 1.0}, "belongs to method 'sde'"),
        (SamplerConfig, {"method": "sde", "gamma": -1.0}, "0 or more"),
        (SamplerConfig, {"grid": "cosine"}, "'quantile'"),
        (DistillConfig, {"span": 0.0}, "1 / student steps"),
        (DistillConfig, {"teacher_steps": 0}, "1 or more"),
    ],
)
def test_settings_refuse(kind: Any, changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        kind(**changed)


def test_prefix() -> None:
    assert tiny_config().prefix == 6
    assert tiny_config(conditioning="adaln").prefix == 0
    assert not tiny_config(guidance_tokens=0).guided


def test_no_torch() -> None:
    program = "import elf.stages.model.config, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
