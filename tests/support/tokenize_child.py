"""Runs the tokenize stage in a process of its own, to be killed: FOLDER WORKERS."""

import os
import sys
from pathlib import Path

from corpora import run_tokenize
from judging import make_artifact


def main() -> None:
    folder, workers = Path(sys.argv[1]), int(sys.argv[2])
    inputs = {role: make_artifact(folder / role, "fetch") for role in ("documents", "tokenizer")}
    run_tokenize(folder / "out", inputs, workers=workers, length=32)


if __name__ == "__main__":
    os.setpgid(0, 0)
    main()
