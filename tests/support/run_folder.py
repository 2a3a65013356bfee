"""A finished run with made-up numbers, laid out as a store lays it out, for what reads runs."""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from judging import make_artifact

from elf.cache.manifest import JSON
from elf.cache.store import Artifact
from elf.stages.texts import Text, write_texts

CONTROLS = ("real", "unigram")
SHARED = ("text", "judge", "tokens", "latents", "real", "scores of real")


def key_of(name: str) -> str:
    """A key that depends on the name alone."""
    return hashlib.sha256(name.encode()).hexdigest()


class RunFolder:
    """Makes the artifacts a report takes; `inputs` holds them by role. Without steps there is no curve to draw. Two
    folders of different `salt` are two runs on the same tokens, with the same real text and judge."""

    def __init__(self, root: Path, *, steps: int = 40, salt: str = "") -> None:
        self.root = root
        self.salt = salt
        self.inputs: dict[str, Artifact] = {}
        self.add("fetch", "text", config={"source": "pypi:prose==1.0#text"}, seconds=8.25)
        self.add("fetch", "judge", config={"source": "pypi:judge==1.0#judge.gguf"}, seconds=44)
        tokens = self.add("tokenize", "tokens", {"documents": "text"}, facts={"rows": 12500}, seconds=6)
        latents = self.add(
            "encode",
            "latents",
            {"tokens": "tokens"},
            facts={"rows": 12500, "length": 32, "width": 384},
            seconds=95,
        )
        train = self.add(
            "train",
            "train",
            {"tokens": "tokens", "latents": "latents"},
            facts={"steps": 40, "parameters": 8_134_912, "tokens": 307_200},
            config={"model": {"depth": 4}, "optim": {"name": "muon", "lr": 0.004}, "batch": 24},
            seconds=3700,
        )
        write_losses(train.path / "metrics.jsonl", steps=steps)
        self.train = train
        self.inputs |= {"train": train, "tokens": tokens, "latents": latents}

    def add(
        self,
        stage: str,
        name: str,
        inputs: Mapping[str, str] | None = None,
        *,
        facts: Mapping[str, JSON] | None = None,
        config: Mapping[str, JSON] | None = None,
        seconds: float = 1.0,
    ) -> Artifact:
        """An artifact of the store, its inputs given by name."""
        keys = {role: self.key(value) for role, value in (inputs or {}).items()}
        key = self.key(name)
        return make_artifact(
            self.root / stage / key, stage, key=key, facts=facts, config=config, inputs=keys, seconds=seconds
        )

    def key(self, name: str) -> str:
        """The key of what goes by that name in this run."""
        return key_of(name if name in SHARED else self.salt + name)

    def add_texts(
        self, name: str, texts: list[str], metrics: dict[str, Any], *, source: str | None = None
    ) -> None:
        """A setting (or a control, if `name` is one) with its texts and its scores; pairs share one `source`."""
        control = name in CONTROLS
        stage = "control" if control else "sample"
        made = self.add(
            stage, name, {"tokens": "tokens"} if control else {"model": "train", "tokens": "tokens"}
        )
        write_texts(
            made.path / "samples.jsonl", [Text(i, 0, text, (), source=source) for i, text in enumerate(texts)]
        )
        if metrics["settings"] is not None:
            (made.path / "settings.json").write_text(json.dumps(metrics["settings"]))
        scored = self.add(
            "evaluate", f"scores of {name}", {"samples": name, "tokens": "tokens", "judge": "judge"}
        )
        (scored.path / "metrics.json").write_text(json.dumps(metrics))
        judged = {"nll": 31 * math.log(403.0), "counted": 31, "entropy": 3.1}
        lines = [
            json.dumps({"id": i, "seed": 0, "empty": not text, "judged": judged}) + "\n"
            for i, text in enumerate(texts)
        ]
        (scored.path / "per_text.jsonl").write_text("".join(lines))
        self.inputs |= {f"{'controls' if control else 'samples'}/{name}": made, f"scores/{name}": scored}


def write_losses(path: Path, *, steps: int) -> None:
    """A `metrics.jsonl` of falling losses, with a step that has no decode rows and two held-out lines."""
    lines: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        decoded = 0 if step == 3 else 64
        losses = {"loss": 2 + 6 / step, "ce": 3 + 6 / step if decoded else 0.0, "l2": 0.5 + 1 / step}
        levels = by_level(losses["ce"], losses["l2"], decoded)
        lines.append(
            {"step": step, **losses, "decode_positions": decoded, "denoise_positions": 256, **levels}
        )
        if step % (steps // 2) == 0:
            held = {f"heldout_{raw}{part}": 3.0 for raw in ("", "raw_") for part in ("loss", "ce", "l2")}
            held |= {f"heldout_{name}": each for name, each in by_level(3.0, 3.0, 64).items()}
            lines.append({"step": step, **held})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def by_level(ce: float, l2: float, decoded: int) -> Mapping[str, list[float] | list[int]]:
    """The lists by noise level of a line; the last tenth of t is empty."""
    counts = {"decode": [decoded // 8] * 8 + [0] * 2, "denoise": [32] * 8 + [0] * 2}
    sums = {
        "ce": [ce * count for count in counts["decode"]],
        "l2": [l2 * count for count in counts["denoise"]],
    }
    named = {f"{part}_sum_by_t": each for part, each in sums.items()}
    return named | {f"{branch}_positions_by_t": each for branch, each in counts.items()}


def watch(train: Path, *, steps: tuple[int, ...], texts: int = 3) -> None:
    """What a training run tells of its speed, and samples taken after those steps."""
    (train / "aux" / "samples").mkdir(parents=True)
    speed = {"seconds": 0.5, "waited": 0.01, "beside": 0.0, "tokens_per_s": 1800.0, "mfu": 0.31}
    (train / "aux" / "timing.jsonl").write_text(json.dumps({"step": 1, **speed}) + "\n")
    for step in steps:
        made = [Text(number, 0, f"text {number} at {step}", ()) for number in range(texts)]
        write_texts(train / "aux" / "samples" / f"step_{step}.jsonl", made)


def made_up_metrics(
    ppl: float | None,
    *,
    entropy: float = 3.0,
    seeds: int = 1,
    faults: list[str] | None = None,
    warnings: list[str] | None = None,
    judge: str | None = "SmolLM2-135M",
    settings: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """What `metrics.json` would say of 64 texts a seed."""

    def score(value: float | None, error: float) -> dict[str, Any]:
        if value is None:
            return {"value": None, "reason": "no judge was named"}
        return {
            "value": value,
            "se_seed": error / 2 if seeds > 1 else None,
            "se_item": error,
            "interval": [value - 2 * error, value + 2 * error],
            "n": 64 * seeds,
            "seeds": seeds,
        }

    plain = {
        "name": judge,
        "window": 1024,
        "precision": "float32",
        "content": f"c{judge}",
        "key": key_of("judge"),
    }
    values = {
        "entropy": entropy if judge else None,
        "entropy_ids": 2.9,
        "distinct_1": 0.41,
        "distinct_2": 0.82,
        "self_bleu": 31.4,
    }
    shares = {"repeats_4": 0.0123, "copy_8": 0.0042, "empty": 0.0, "duplicates": 0.0}
    return {
        "judge": plain if judge else None,
        "settings": settings,
        "counts": {"texts": 64 * seeds, "seeds": seeds, "empty": 2, "duplicates": 3}
        | ({"scored_tokens": 1984 * seeds} if judge else {}),
        "scores": {"gen_ppl": score(ppl, (ppl or 0) / 20)}
        | {name: score(value, 0.03) for name, value in (values | shares).items()},
        "entropy_floor": {"value": 2.65, "origin": "held-out text − 0.5"},
        "degenerate": faults or [],
        "warnings": warnings or [],
    }
