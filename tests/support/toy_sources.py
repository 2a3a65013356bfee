"""Training inputs that can come from a store or from the encoder: tokens, a T5 of a few thousand weights, its store."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toy_encoders import ONE, Case, make_case, make_t5
from toy_training import TRAIN, finish

from elf.cache.manifest import Fingerprint, Manifest, Provenance, merkle_root
from elf.cache.store import Artifact
from elf.pipeline.launch import describe_job
from elf.pipeline.progress import LineProgress
from elf.pipeline.stage import StageContext, Unbuilt
from elf.stages import encode, train
from elf.stages.compute import TrainCompute
from elf.stages.config import Encode
from elf.stages.encoding import forget_encoder
from elf.stages.experiment import TRAIN as TRAIN_STAGE
from elf.stages.train_settings import Train

NOBODY = Provenance(None, None, (), "here", "3", {}, "2026-01-01T00:00:00Z", 0.0)


@dataclass(frozen=True, slots=True)
class Split:
    """One split: its tokens and encoder, what encode was told, and the store it made."""

    case: Case
    section: Encode
    stored: Artifact

    @property
    def unbuilt(self) -> Unbuilt:
        """The store as the engine describes it where it is not there."""
        inputs = {role: artifact.manifest.fingerprint for role, artifact in self.case.inputs.items()}
        manifest = Manifest(
            stage="encode",
            version=1,
            fingerprint=Fingerprint("0" * 64),
            identity={},
            config={},
            inputs=inputs,
            content=merkle_root({}),
            files={},
            aux={},
            facts={},
            provenance=NOBODY,
        )
        return Unbuilt(manifest, self.section, ONE, self.case.inputs)


def make_split(
    folder: Path,
    documents: Sequence[str] | Sequence[tuple[str, str]],
    *,
    max_source: int | None = None,
    length: int = 16,
    **settings: Any,
) -> Split:
    """A split and its finished store; ``settings`` are those of encode."""
    case = make_case(folder, make_t5(), documents, max_source=max_source, length=length)
    section = Encode(**{"shard_bytes": 5000, **settings})
    context = case.context("latents")
    facts = encode.run(section, context)
    forget_encoder()
    inputs = {"tokens": case.tokens.manifest.fingerprint}
    return Split(case, section, finish(context.out, "encode", dict(facts), inputs))


@dataclass(frozen=True, slots=True)
class Sources:
    """The splits of a training run."""

    train: Split
    heldout: Split | None = None

    def context(self, out: Path, source: str, **compute: Any) -> StageContext:
        """What a training run by that source is given: no store but for ``store``."""
        out.mkdir(exist_ok=True, parents=True)
        inputs, unbuilt = self.given(source)
        setup = TrainCompute.model_validate({"device": "cpu", "threads": 1, "source": source, **compute})
        return StageContext(out, inputs, setup, LineProgress(every=1e9), unbuilt)

    def given(self, source: str) -> tuple[dict[str, Artifact], dict[str, Unbuilt]]:
        inputs: dict[str, Artifact] = {}
        unbuilt: dict[str, Unbuilt] = {}
        for prefix, split in (("", self.train), ("heldout_", self.heldout)):
            if split is not None:
                inputs[f"{prefix}tokens"] = split.case.tokens
                if source == "store":
                    inputs[f"{prefix}latents"] = split.stored
                else:
                    unbuilt[f"{prefix}latents"] = split.unbuilt
        return inputs, unbuilt

    def run(
        self, out: Path, source: str, settings: Mapping[str, Any] | None = None, **compute: Any
    ) -> dict[str, Any]:
        """Train in this process."""
        return dict(train.run(self.section(settings or {}), self.context(out, source, **compute)))

    def section(self, settings: Mapping[str, Any]) -> Train:
        """The toy's settings with some changed."""
        return Train.model_validate_json(json.dumps({**TRAIN, "latents": self.scale(), **settings}))

    def scale(self) -> dict[str, Any]:
        """Numbers near those of the store."""
        facts = self.train.stored.manifest.facts
        return {"mean": round(float(str(facts["mean"])), 2), "std": round(float(str(facts["std"])), 1)}

    def job(self, out: Path, source: str, settings: Mapping[str, Any], **compute: Any) -> Path:
        """JOB.json for the worker, as the engine writes it."""
        context = self.context(out, source, **compute)
        job = describe_job(TRAIN_STAGE, self.section(settings), context, context.aux / "events.jsonl")
        path = context.aux / "job.json"
        path.write_text(json.dumps(job))
        return path
