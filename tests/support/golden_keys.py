"""Recorded keys of every shipped configuration, and how to record them anew.

    .venv/bin/python tests/support/golden_keys.py

Text that ships with the interpreter differs between releases of Python, so its digest is set to one value; files that
a configuration expects of whoever runs it are stood in for by empty ones.
"""

import contextlib
import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from elf.pipeline.config import load_experiment, shipped_names
from elf.pipeline.plan import Plan
from elf.stages.assets import Located
from elf.stages.config import Experiment
from elf.stages.experiment import plan_experiment

ROOT = Path(__file__).resolve().parent.parent.parent
SHIPPED = ROOT / "configs"
RECORDED = ROOT / "tests" / "configs" / "golden_keys.json"
SAME_EVERYWHERE = f"sha256:{'0' * 64}"


def plan_shipped(name: str) -> Plan:
    """The plan of a shipped configuration, equal on every Python."""
    with patch("elf.stages.assets.digest_topics", lambda module: SAME_EVERYWHERE), standing_in(name):
        return plan_experiment(load_experiment(name, Experiment, [], SHIPPED))


@contextmanager
def standing_in(name: str) -> Iterator[None]:
    """A working folder with an empty file for every local one that a shipped configuration names."""
    data = load_experiment(name, Experiment, [], SHIPPED).data
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for source in (data.train, data.validation, data.test):
            if source is not None and source.asset.uri.startswith("path:"):
                path = Path(source.asset.uri.removeprefix("path:"))
                path.parent.mkdir(exist_ok=True)
                path.touch()
        yield


def fetched(plan: Plan) -> Iterator[Located]:
    """What a plan has brought from outside."""
    for each in plan:
        if isinstance(each.step.section, Located):
            yield each.step.section


def is_pinned(asset: Located) -> bool:
    """Whether an asset is known by its digest or by a commit."""
    return asset.digest is not None or re.search(r"@[0-9a-f]{40}(#|$)", asset.source) is not None


def keys_of(plan: Plan) -> dict[str, dict[str, Any]]:
    """By step: the key and the payload it is the hash of."""
    return {each.step.name: {"key": each.key, "payload": dict(each.payload)} for each in plan}


def read_recorded() -> dict[str, dict[str, Any]]:
    """By configuration and step, what was recorded."""
    return json.loads(RECORDED.read_text(encoding="utf-8"))


def record() -> None:
    """Write the present keys, one step a line, so that a diff shows which steps changed."""
    configs: list[str] = []
    for name in shipped_names(SHIPPED):
        steps = [
            f"  {json.dumps(step)}: {json.dumps(kept, sort_keys=True, ensure_ascii=False)}"
            for step, kept in keys_of(plan_shipped(name)).items()
        ]
        configs.append(f" {json.dumps(name)}: {{\n" + ",\n".join(steps) + "\n }")
    RECORDED.write_text("{\n" + ",\n".join(configs) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    record()
