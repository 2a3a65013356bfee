"""A lineage with counts that can be worked out by hand: text, encoder, latents, a training, a round, texts, scores."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from shutil import copytree
from typing import Any

from judging import make_artifact
from run_folder import key_of

from elf.cache.store import Artifact
from elf.stages.model.config import ModelConfig, ObjectiveConfig, SamplerConfig

MODEL = ModelConfig(width=6, vocabulary=50, length=8, hidden=12, depth=2, heads=2, bottleneck=4)
OBJECTIVE = ObjectiveConfig()
ENCODER = {"d_model": 6, "d_kv": 4, "num_heads": 2, "d_ff": 10, "num_layers": 3}
JUDGE = {"n_embd": 4, "n_layer": 2, "vocab_size": 9}
ROWS = 20


class Costly:
    """Makes artifacts in a store, inputs given by name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.made: dict[str, Artifact] = {}

    def add(
        self,
        stage: str,
        name: str,
        inputs: Mapping[str, str] | None = None,
        *,
        facts: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        files: Mapping[str, str] | None = None,
        seconds: float = 1.0,
    ) -> Artifact:
        keys = {role: key_of(each) for role, each in (inputs or {}).items()}
        key = key_of(name)
        folder = self.root / stage / key
        for path, text in (files or {}).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        made = make_artifact(folder, stage, key=key, facts=facts, config=config, inputs=keys, seconds=seconds)
        self.made[name] = made
        return made

    def tokens(
        self, name: str = "tokens", *, rows: int = ROWS, source: int | None = None, files: Path | None = None
    ) -> Artifact:
        """``files``: a folder that the artifact's rows are taken from."""
        if files is not None:
            copytree(files, self.root / "tokenize" / key_of(name))
        settings = {"length": MODEL.length, "max_source": source}
        config = {"tokenize": settings, "data": {"source": None if source is None else "de"}}
        return self.add("tokenize", name, facts={"rows": rows, "packed": rows * 8}, config=config)

    def encoder(self) -> Artifact:
        return self.add("fetch", "encoder", files={"data/config.json": json.dumps(ENCODER)})

    def latents(self, views: Iterable[str] = ("plain",), layer: int | None = None) -> Artifact:
        facts = {"rows": ROWS, "views": {name: {} for name in views}}
        return self.add(
            "encode",
            "latents",
            {"tokens": "tokens", "encoder": "encoder"},
            facts=facts,
            config={"layer": layer},
        )

    def train(
        self,
        lines: Iterable[Mapping[str, Any]],
        *,
        steps: int,
        objective: ObjectiveConfig = OBJECTIVE,
        heldout: bool = False,
        model: Mapping[str, Any] | None = None,
    ) -> Artifact:
        inputs = {"tokens": "tokens", "latents": "latents"}
        inputs |= {"heldout_tokens": "heldout"} if heldout else {}
        return self.add(
            "train",
            "train",
            inputs,
            facts={"steps": steps, "tokens": steps * 4 * MODEL.length},
            config={"batch": 4, "heldout": {"rows": 100} if heldout else None},
            files={"model.json": card(model, objective), "metrics.jsonl": as_lines(lines)},
        )

    def sample(self, sampler: SamplerConfig, *, texts: int = 10, trajectories: int = 0) -> Artifact:
        return self.add(
            "sample",
            "sample",
            {"model": "train", "tokens": "tokens"},
            facts={"texts": texts},
            config={"trajectories": trajectories},
            files={"settings.json": json.dumps(asdict(sampler))},
        )

    def scores(self, lengths: Iterable[int]) -> Artifact:
        self.add("fetch", "judge", files={"data/config.json": json.dumps(JUDGE)})
        judged = [{"judged": {"tokens": each} if each else None} for each in lengths]
        return self.add(
            "evaluate",
            "scores",
            {"samples": "sample", "judge": "judge"},
            config={"judge": {"name": "small"}},
            files={"per_text.jsonl": as_lines(judged)},
        )


def card(model: Mapping[str, Any] | None = None, objective: ObjectiveConfig = OBJECTIVE) -> str:
    """What ``model.json`` says of these networks."""
    return json.dumps({"model": model or asdict(MODEL), "objective": asdict(objective)})


def as_lines(items: Iterable[Any]) -> str:
    return "".join(json.dumps(each) + "\n" for each in items)


def a_step(decode: int, denoise: int, unit: str = "positions", **more: int) -> dict[str, int]:
    """A line of metrics, as far as it counts."""
    return {f"decode_{unit}": decode, f"denoise_{unit}": denoise, **more}
