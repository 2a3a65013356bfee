"""Small corpora, a trained tokenizer, and one call that runs the tokenize stage on them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from judging import make_artifact

from elf.cache.store import Artifact
from elf.pipeline.progress import LineProgress
from elf.pipeline.stage import Compute, StageContext
from elf.stages import tokenization
from elf.stages.config import Asset, Source, Tokenize
from elf.stages.experiment import TokenizeStep
from elf.stages.subwords import train_unigram
from elf.stages.tokenizer import save_tokenizer

ENGLISH = [
    "the market by the river opens early and the people of the town walk there with bread, fish and apples",
    "a marker stands where the zebra and the walrus follow the long document; the last one is short",
    "Wir sehen den Fluss und die Stadt, und das Wetter ist gut. the the the the the the the the the",
    "yes, the target sentence says something and the source sentence says something else (number 0123456789)",
]


def make_tokenizer(folder: Path) -> Artifact:
    """A tokenizer artifact in the T5 manner; "the" is one piece of it."""
    data = folder / "data"
    data.mkdir(parents=True)
    save_tokenizer(train_unigram(ENGLISH * 3, size=160), data)
    return make_artifact(folder, "tokenizer")


def make_corpus(folder: Path, files: Mapping[str, bytes | str | Sequence[Any]]) -> Artifact:
    """A fetched corpus: file names to bytes, text, or records that become JSON lines."""
    for name, content in files.items():
        path = folder / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        else:
            path.write_text("".join(f"{json.dumps(record)}\n" for record in content), encoding="utf-8")
    return make_artifact(folder, "fetch", config={"location": f"/somewhere/{folder.name}"})


def numbered(texts: Sequence[str]) -> list[dict[str, str]]:
    """Records with ids d0, d1, …"""
    return [{"id": f"d{index}", "text": text} for index, text in enumerate(texts)]


def make_source(**settings: Any) -> Source:
    """How a test corpus is read."""
    return Source(asset=Asset(uri="path:unused"), **settings)


def run_tokenize(
    out: Path,
    inputs: Mapping[str, Artifact],
    *,
    workers: int = 1,
    source: Source | None = None,
    split: str = "train",
    holdout: float = 0.0,
    **settings: Any,
) -> dict[str, Any]:
    """Run the stage into ``out`` and return its facts."""
    out.mkdir(parents=True, exist_ok=True)
    section = TokenizeStep(
        data=source or make_source(),
        tokenize=Tokenize(**settings),
        split=split,  # type: ignore[arg-type]  # one of the three by construction
        holdout=holdout,
    )
    context = StageContext(out, inputs, Compute(workers=workers), LineProgress(every=1e9))
    return dict(tokenization.run(section, context))


def digest_folder(folder: Path) -> str:
    """sha256 over names and bytes of all files but those of ``aux``."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not name.startswith("aux/"):
            total.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()
