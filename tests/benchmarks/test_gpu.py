"""The GPU's benchmark runs from the checkout alone: torch and nothing else of what the project depends on."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
OTHER_NAMES = {"google-crc32c": {"google_crc32c"}, "pyyaml": {"yaml"}, "pip": set[str](), "numpy": set[str]()}
# Takes the installed package away, lets nothing in that a stock image may lack, and runs the program.
ALONE = """
import runpy, sys
refused = set(sys.argv[1].split(","))
class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in refused:
            raise ImportError(f"{name} is not to be imported")
sys.meta_path = [Refusing()] + [each for each in sys.meta_path if "editable" not in repr(each)]
sys.argv = sys.argv[2:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def start(folder: Path, *arguments: str) -> str:
    """What it prints."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[\[<>=]", each)[0] for each in project["dependencies"]} - {"torch"}
    refused = {name for each in names for name in OTHER_NAMES.get(each, {each.replace("-", "_")})}
    assert {"zarr", "pydantic", "accelerate", "transformers", "yaml"} <= refused
    done = subprocess.run(
        [sys.executable, "-c", ALONE, ",".join(refused), str(ROOT / "benchmarks" / "gpu.py"), *arguments],
        cwd=folder,
        env={**os.environ, "OUT": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    return done.stdout


def test_it_imports_nothing_that_a_stock_image_lacks(tmp_path: Path) -> None:
    assert "--tiny" in start(tmp_path, "--help")


@pytest.mark.slow
def test_it_runs_on_a_toy(tmp_path: Path) -> None:
    said = start(tmp_path, "--device", "cpu", "--tiny")
    told = json.loads((tmp_path / "gpu.json").read_text())
    assert not [way["failed"] for way in told["ways"] if way["failed"]]
    assert {(way["side"], way["latents"], way["compiled"]) for way in told["ways"]} > {
        (side, "stored", compiled) for side in ("literal", "product") for compiled in (False, True)
    }
    assert all(way["tokens_per_s"] > 0 < way["mfu"] for way in told["ways"])
    assert said.count("  ok\n") == 9
