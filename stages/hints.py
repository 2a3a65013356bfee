"""What is known of an experiment's pieces before they are there: from the files that are, else from its hints."""

import json
from pathlib import Path

from elf.cache.store import Artifact
from elf.stages.config import Asset, Experiment
from elf.stages.workload import read_shape

USED, FULL = 12_000, 32_100
"""Entries of a decode head that are guessed: those a small corpus uses of a tokenizer; T5's."""


def width_of(experiment: Experiment, encoder: Artifact | None) -> int | None:
    """d of the latents: of learnt embeddings as they are set, of an encoder as its folder says if it was fetched, else
    as the configuration expects."""
    if experiment.train.embeddings is not None:
        return experiment.train.embeddings.width
    if experiment.pretrain is not None:
        return experiment.pretrain.width
    shape = read_shape(encoder.path / "data", None) if encoder is not None else None
    return experiment.encode.expect_width if shape is None else shape.width


def vocabulary_of(experiment: Experiment, tokens: Artifact | None) -> int:
    """Entries of the decode head: as the rows say if they are there, else a guess."""
    if tokens is not None:
        try:
            return int(json.loads((tokens.path / "vocabulary.json").read_text(encoding="utf-8"))["size"])
        except (OSError, ValueError, KeyError, TypeError):
            pass  # damaged rows are the business of whoever reads them
    tokenize = experiment.tokenize
    if tokenize.subwords is not None:
        return tokenize.subwords.size + 100
    return USED if tokenize.vocabulary == "used" else FULL


def expected_size(experiment: Experiment, step: str) -> tuple[int | None, bool]:
    """Bytes of the asset behind a fetch step, and whether they are those of a file here and no hint."""
    judge, data = experiment.evaluate.judge, experiment.data
    assets: dict[str, Asset | None] = {
        "fetch-train": data.train.asset,
        "fetch-validation": data.validation.asset if data.validation is not None else None,
        "fetch-test": data.test.asset if data.test is not None else None,
        "fetch-tokenizer": experiment.tokenize.tokenizer,
        "fetch-encoder": experiment.encode.encoder,
        "fetch-weights": experiment.weights.asset if experiment.weights is not None else None,
        "fetch-judge": judge.asset if judge is not None else None,
    }
    asset = assets[step]
    if asset is None:
        return None, False
    path = local_path(asset)
    if path is not None and path.is_file():
        return path.stat().st_size, True
    return asset.expect_bytes, False


def local_path(asset: Asset) -> Path | None:
    """Of a file or folder that is to be here."""
    scheme, _, name = asset.uri.partition(":")
    return Path(name).expanduser() if scheme == "path" else None
