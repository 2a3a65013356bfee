"""From an experiment to the plan of stages it stands for.

    fetch → [tokenizer] → tokenize (one per split) → [pretrain] → encode (one per split) → train
          → sample (one per setting), control (one per kind) → evaluate (one each) → report

Reading this file tells which stage takes what from which; no heavy library is imported here.
"""

from collections.abc import Mapping
from typing import Any, Literal

from elf.pipeline.plan import Plan, Step
from elf.pipeline.section import Section
from elf.pipeline.stage import Compute, Launch, StageSpec
from elf.stages.assets import Located, locate
from elf.stages.config import (
    Asset,
    Control,
    Encode,
    Evaluate,
    Experiment,
    Pretrain,
    Report,
    Sample,
    Source,
    Subwords,
    Tokenize,
    Train,
)

Split = Literal["train", "validation", "test"]


class TokenizeStep(Section):
    """What the tokenize stage is given: how to read, which documents are its own, how to make rows."""

    data: Source
    tokenize: Tokenize
    split: Split
    holdout: float
    """Share of documents that the hash of their text sends to the validation split; 0 keeps all."""


class TokenizerStep(Section):
    """What the tokenizer stage is given: its settings and which documents are training documents."""

    data: Source
    subwords: Subwords
    holdout: float
    """Share of documents that belongs to the validation split and is not looked at."""


class ReportStep(Section):
    """What the report stage is given: its settings and the experiment's name."""

    experiment: str
    report: Report


FETCH = StageSpec("fetch", Located, "elf.stages.fetch:run", (), version=1)
TOKENIZER = StageSpec("tokenizer", TokenizerStep, "elf.stages.tokenizer:run", ("documents",), version=1)
TOKENIZE = StageSpec(
    "tokenize",
    TokenizeStep,
    "elf.stages.tokenization:run",
    ("documents", "tokenizer", "vocabulary?"),
    version=1,
)
PRETRAIN = StageSpec("pretrain", Pretrain, "elf.stages.pretrain:run", ("tokens",), version=1)
ENCODE = StageSpec("encode", Encode, "elf.stages.encode:run", ("tokens", "encoder"), version=1)
TRAIN = StageSpec(
    "train",
    Train,
    "elf.stages.train:run",
    ("tokens", "latents", "heldout_tokens?", "heldout_latents?"),
    version=1,
    launch=Launch.ACCELERATE,
    worker="elf.stages.worker",
)
SAMPLE = StageSpec("sample", Sample, "elf.stages.sample:run", ("model", "tokens", "latents?"), version=1)
CONTROL = StageSpec("control", Control, "elf.stages.control:run", ("tokens", "heldout?"), version=1)
EVALUATE = StageSpec(
    "evaluate", Evaluate, "elf.stages.evaluate:run", ("samples", "tokens", "heldout?", "judge?"), version=1
)
REPORT = StageSpec(
    "report",
    ReportStep,
    "elf.stages.report:run",
    ("train", "tokens", "latents", "samples/*", "scores/*", "controls/*"),
    version=1,
)
STAGES: Mapping[str, StageSpec[Any]] = {
    spec.name: spec
    for spec in (FETCH, TOKENIZER, TOKENIZE, PRETRAIN, ENCODE, TRAIN, SAMPLE, CONTROL, EVALUATE, REPORT)
}


class _Builder:
    """Collects the steps of one experiment; each method adds a part of the graph and returns step names."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.steps: dict[str, Step] = {}

    def add(
        self,
        name: str,
        spec: StageSpec[Any],
        section: Section,
        inputs: Mapping[str, str],
        prefix: str,
        **places: str,
    ) -> str:
        compute: Compute = getattr(self.experiment.compute, spec.name)
        self.steps[name] = Step(name, spec, section, dict(inputs), compute, prefix, places)
        return name

    def fetch(self, name: str, asset: Asset, prefix: str) -> str:
        """The step that brings ``asset``; two roles of one asset share a step's key, not its name."""
        return self.add(f"fetch-{name}", FETCH, locate(asset), {}, prefix)

    def tokenizer(self) -> str:
        settings = self.experiment.tokenize
        if settings.subwords is not None:
            inputs = {"documents": "fetch-train"}
            data = self.experiment.data
            section = TokenizerStep(data=data.train, subwords=settings.subwords, holdout=data.holdout)
            return self.add("tokenizer", TOKENIZER, section, inputs, "")
        if settings.tokenizer is not None:
            return self.fetch("tokenizer", settings.tokenizer, "tokenize.tokenizer")
        return "fetch-encoder"

    def encoder(self) -> str:
        if self.experiment.pretrain is not None:
            inputs = {"tokens": "tokenize"}
            return self.add("pretrain", PRETRAIN, self.experiment.pretrain, inputs, "pretrain")
        return "fetch-encoder"

    def corpus(self) -> dict[Split, tuple[str, str]]:
        """Tokenize and encode steps of every split there is."""
        data, settings = self.experiment.data, self.experiment.tokenize
        self.fetch("train", data.train.asset, "data.train.asset")
        if self.experiment.encode.encoder is not None:
            self.fetch("encoder", self.experiment.encode.encoder, "encode.encoder")
        tokenizer = self.tokenizer()
        sources: dict[Split, Source | None] = {
            "train": data.train,
            "validation": data.train if data.holdout else data.validation,
            "test": data.test,
        }
        made: dict[Split, tuple[str, str]] = {}
        for split, source in sources.items():
            if source is None:
                continue
            shared = split == "train" or source is data.train
            documents = "fetch-train" if shared else self.fetch(split, source.asset, f"data.{split}.asset")
            inputs = {"documents": documents, "tokenizer": tokenizer}
            if split != "train" and settings.vocabulary == "used":
                inputs["vocabulary"] = "tokenize"
            rule = settings if split == "train" else settings.model_copy(update={"rows": None})
            section = TokenizeStep(
                data=source, tokenize=rule, split=split, holdout=data.holdout if shared else 0.0
            )
            tokens = self.add(
                _of("tokenize", split),
                TOKENIZE,
                section,
                inputs,
                "",
                data=f"data.{split}",
                holdout="data.holdout",
            )
            made[split] = (tokens, _of("encode", split))
        encoder = self.encoder()
        for tokens, latents in made.values():
            self.add(
                latents, ENCODE, self.experiment.encode, {"tokens": tokens, "encoder": encoder}, "encode"
            )
        return made

    def train(self, corpus: Mapping[Split, tuple[str, str]]) -> str:
        tokens, latents = corpus["train"]
        inputs = {"tokens": tokens, "latents": latents}
        if self.experiment.train.heldout is not None and "validation" in corpus:
            inputs["heldout_tokens"], inputs["heldout_latents"] = corpus["validation"]
        return self.add("train", TRAIN, self.experiment.train, inputs, "train")

    def texts(self, model: str, corpus: Mapping[Split, tuple[str, str]]) -> dict[str, str]:
        """Sample and control steps by the name their scores go by."""
        made: dict[str, str] = {}
        for index, setting in enumerate(self.experiment.sample):
            inputs = {"model": model, "tokens": corpus["train"][0]}
            if self.experiment.data.train.pairs:
                inputs["tokens"], inputs["latents"] = corpus[setting.split]
            name = f"sample-{setting.name}"
            made[setting.name] = self.add(name, SAMPLE, setting, inputs, f"sample.{index}")
        heldout = {"heldout": corpus["validation"][0]} if "validation" in corpus else {}
        for index, control in enumerate(self.experiment.evaluate.controls):
            inputs = {"tokens": corpus["train"][0], **heldout}
            name = f"control-{control.kind}"
            made[control.kind] = self.add(name, CONTROL, control, inputs, f"evaluate.controls.{index}")
        return made

    def scores(self, texts: Mapping[str, str], corpus: Mapping[Split, tuple[str, str]]) -> dict[str, str]:
        evaluate = self.experiment.evaluate
        shared = {"tokens": corpus["train"][0]}
        if "validation" in corpus:
            shared["heldout"] = corpus["validation"][0]
        if evaluate.judge is not None:
            shared["judge"] = self.fetch("judge", evaluate.judge.asset, "evaluate.judge.asset")
        return {
            name: self.add(f"evaluate-{name}", EVALUATE, evaluate, {"samples": step, **shared}, "evaluate")
            for name, step in texts.items()
        }


def _of(stage: str, split: Split) -> str:
    return stage if split == "train" else f"{stage}-{split}"


def plan_experiment(experiment: Experiment) -> Plan:
    """The plan of an experiment. Local input files are read to know their digests; nothing else is touched."""
    builder = _Builder(experiment)
    corpus = builder.corpus()
    model = builder.train(corpus)
    texts = builder.texts(model, corpus)
    scores = builder.scores(texts, corpus)
    inputs = {"train": model, "tokens": corpus["train"][0], "latents": corpus["train"][1]}
    inputs |= {
        f"{'samples' if step.startswith('sample-') else 'controls'}/{name}": step
        for name, step in texts.items()
    }
    inputs |= {f"scores/{name}": step for name, step in scores.items()}
    section = ReportStep(experiment=experiment.name, report=experiment.report)
    builder.add("report", REPORT, section, inputs, "")
    return Plan(builder.steps.values())
