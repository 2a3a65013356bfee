"""A small copy of every shipped ablation, run: the same variants over `tiny`, trained for two steps.

make ablations-smoke
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import start

CONFIGS = Path(__file__).resolve().parent.parent.parent / "configs"
ABLATIONS = sorted((CONFIGS / "ablations").glob("*.yaml"))
SETTING = {"name": "ode", "method": "ode", "steps": 2, "guidance": 1.0, "gamma": 0.0, "count": 4}
QUICK: dict[str, Any] = {
    "extends": "tiny",
    "pretrain": {"steps": 2},
    "train": {"steps": 2, "heldout": None},
    "sample": [SETTING],
    "evaluate": {"controls": []},
}
WIDTHS = {"t5-base": 48, "t5-large": 64}
"""Of the small T5s that stand for those of the hub."""
DEPTHS = {"M": 3, "L": 4}
"""Of the networks that stand for the published sizes."""
SCRATCH = {"width": 32, "layers": 2, "heads": 2, "feed_forward": 64, "batch": 8}
WITHOUT_LATENTS = {"train.latents": {"mean": 0.0, "std": 0.2}}
"""What `tiny` says of latents, taken back for those who have none."""
LEFT_OUT = ("encode.expect_width", "tokenize.tokenizer", "train.epochs")


def small(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a variant for an experiment the size of `tiny`."""
    made: dict[str, Any] = {}
    for path, value in settings.items():
        if path == "encode.encoder" and isinstance(value, dict):
            (made["pretrain.width"],) = (
                width for name, width in WIDTHS.items() if f"/{name}@" in value["uri"]
            )
        elif path == "train.model.size":
            made["train.model.depth"] = DEPTHS[value]
        elif path == "sample":
            made[path] = [smaller(setting) for setting in value]
        elif path == "train.method":
            made |= {path: value, **WITHOUT_LATENTS, "train.model.bottleneck": 128}
        elif path == "train.embeddings":
            made |= {path: {"width": 32}, **WITHOUT_LATENTS}
        elif path == "pretrain":
            made[path] = SCRATCH | {"steps": min(value["steps"], 2)}
        elif path not in LEFT_OUT and path != "encode.encoder":
            made[path] = value
    return made


def smaller(setting: dict[str, Any]) -> dict[str, Any]:
    """A few texts of a sampling setting, in few steps."""
    few = setting | {"count": 4, "seeds": [0]}
    if "over" in setting:
        few["over"] = setting["over"] | {"steps": [1, 2]}
    return few


def pairs(folder: Path) -> dict[str, Any]:
    """What `tiny` needs to be of pairs: a file of them, and room for the source."""
    lines = [
        json.dumps({"source": f"number {n} is said", "target": f"and {n} is answered"}) for n in range(300)
    ]
    (folder / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    asset = {"uri": f"path:{folder / 'pairs.jsonl'}"}
    return {
        "data": {"train": {"asset": asset, "source": "source", "target": "target"}, "holdout": 0.1},
        "tokenize": {"max_source": 12, "subwords": {"size": 150}},
    }


@pytest.mark.ablations
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", ABLATIONS, ids=lambda path: path.stem)
def test_a_small_copy_of_an_ablation_runs(path: Path, tmp_path: Path) -> None:
    given = yaml.safe_load(path.read_text())
    copy = dict(QUICK)
    command = "sweep"
    if "sweep" in given:
        varied = given["sweep"].get("variants", {})
        copy["sweep"] = given["sweep"] | {"variants": {name: small(each) for name, each in varied.items()}}
    else:
        command, (setting,) = "run", given["sample"]
        copy |= pairs(tmp_path) | {
            "sample": [setting | {"steps": 2, "count": 4, "split": "validation"}],
        }
    (tmp_path / "copy.yaml").write_text(yaml.safe_dump(copy))
    process = start(tmp_path, command, "copy.yaml")
    out, err = process.communicate(timeout=800)
    assert process.returncode == 0, out + err
    page = tmp_path / "runs" / ("copy-sweep" if command == "sweep" else "copy") / "report.html"
    assert page.stat().st_size > 50_000
