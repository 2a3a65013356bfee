"""The bytes of stages that compute no floating point are the recorded ones, unless a version says otherwise.

What code or a library changes without a setting saying so would otherwise be reused for what it no longer is.
Encoders and training are left out: their bytes belong to a type of machine.
"""

import json
from pathlib import Path

import pytest
from commands import keys

RECORDED = Path(__file__).parent / "recorded_bytes.json"
STEPS = (
    "tokenizer",
    "tokenize",
    "tokenize-validation",
    "control-real",
    "control-replaced",
    "control-unigram",
)
CURE = (
    "if the bytes of {step} are meant to be others, bump the version of its stage in stages/experiment.py; then put "
    "{found} into tests/flows/recorded_bytes.json."
)


def found(whole: Path) -> dict[str, dict[str, str]]:
    """Key and content of each step."""
    named = keys(whole)
    return {
        step: {
            "key": named[step],
            "content": json.loads((whole / "store" / named[step] / "manifest.json").read_text())["content"],
        }
        for step in ("fetch-train", *STEPS)
    }


def test_equal_keys_have_equal_bytes(whole: Path) -> None:
    recorded, made = json.loads(RECORDED.read_text()), found(whole)
    if recorded["fetch-train"] != made["fetch-train"]:
        pytest.skip("this Python ships other prose than the one this was recorded with")
    for step in STEPS:
        assert recorded[step] == made[step], CURE.format(step=step, found=json.dumps({step: made[step]}))
