"""The baselines on prose: do they learn more of it than how common each token is?

    .venv/bin/python benchmarks/baselines.py [TEXT] [--steps 300]

TEXT is a text file, a jsonl or a parquet one with a column `text`; without it the prose that ships with the interpreter
is taken. Each baseline is trained by `elf run`, tokens of its own first (1,000 pieces), and the CPU time of all that is
counted. The bar is the entropy of the held-out tokens by their own frequencies: what a model that knows nothing but
these would come to at best. The loss of the masked one is a bound, so its true loss is lower still.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from measuring import Bar, finish

from elf.stages.rows import TokenRows

ELF = str(Path(sys.executable).parent / "elf")
METHODS = ("autoregressive", "masked")
MINUTES = 10.0


def write_config(folder: Path, text: Path | None, steps: int) -> None:
    """`against.yaml`: rows of 64 tokens, a network of 128 × 4 blocks."""
    uri = "python:pydoc_data.topics" if text is None else f"path:{text.resolve()}"
    config = {
        "extends": "tiny",
        "data": {"train": {"asset": {"uri": uri}, "expect_tokens": None, "id": None}, "holdout": 0.05},
        "tokenize": {"subwords": {"size": 1000}, "length": 64, "rows": 20_000},
        "train": {
            "model": {"depth": 4, "hidden": 128, "heads": 4, "bottleneck": 128},
            "latents": {"mean": 0.0, "std": 0.2},
            "optim": {"lr": 0.004, "warmup_steps": 20, "ema": 0.97},
            "batch": 32,
            "steps": steps,
            "heldout": {"every": max(1, steps // 5), "rows": 256},
        },
        "sample": [],
        "evaluate": {"controls": []},
    }
    (folder / "against.yaml").write_text(json.dumps(config))


def train(folder: Path, method: str) -> tuple[dict[str, Any], float]:
    """Facts of a trained baseline and CPU seconds of all that was run for it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [ELF, "run", "against.yaml", "--until", "train", "--set", f"train.method={method}"]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "ELF_STORE": "store"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    manifest = json.loads((folder / "runs" / "against" / "train" / "manifest.json").read_text())
    return manifest["facts"], after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def unigram_entropy(folder: Path) -> float:
    """Nats of a held-out token by the frequencies of the held-out tokens."""
    rows = TokenRows.open((folder / "runs" / "against" / "tokenize-validation").resolve())
    counts = np.unique(rows.ids(np.arange(rows.rows)), return_counts=True)[1]
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("text", nargs="?", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    asked = parser.parse_args()
    bars: list[Bar] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_config(folder, asked.text, asked.steps)
        print(f"{'':16}{'loss, nats':>12}{'unigram':>10}{'perplexity':>12}{'CPU minutes':>13}")
        for method in METHODS:
            facts, seconds = train(folder, method)
            held, entropy = facts["heldout"], unigram_entropy(folder)
            loss = held["heldout_loss"]
            print(f"{method:16}{loss:>12.3f}{entropy:>10.3f}{np.exp(loss):>12.1f}{seconds / 60:>13.1f}")
            bars += [
                Bar(f"{method}: loss over unigram entropy", loss / entropy, 1.0, at_most=True),
                Bar(f"{method}: CPU minutes", seconds / 60, MINUTES, at_most=True),
            ]
    finish(bars)


if __name__ == "__main__":
    main()
