"""From an experiment to the plan of stages it stands for.

    fetch → [tokenizer] → tokenize (one per split) → [pretrain] → encode (one per split) → train
    train, or weights from outside → [distill, round by round] → sample (one per setting)
    sample, control (one per kind) → evaluate (one each) → report

Reading this file tells which stage takes what from which; no heavy library is imported here.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from elf.pipeline.plan import Plan, Step, Tie
from elf.pipeline.section import Section
from elf.pipeline.stage import Launch, StageSpec
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
    Weights,
)
from elf.stages.train_settings import DistillRound, Latents, Model, Objective, Teaching, Train, Training

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


class WeightsStep(Section):
    """What the weights stage is given: the network and objective the weights are of, and how rows are made."""

    tokenize: Tokenize
    pairs: bool
    model: Model
    latents: Latents
    objective: Objective


class ReportStep(Section):
    """What the report stage is given: its settings and the experiment's name."""

    experiment: str
    report: Report


FETCH = StageSpec("fetch", Located, "elf.stages.fetch:run", (), version=1)
TOKENIZER = StageSpec(
    "tokenizer",
    TokenizerStep,
    "elf.stages.tokenizer:run",
    ("documents",),
    version=1,
    neutral={"data.documents": "file"},
)
TOKENIZE = StageSpec(
    "tokenize",
    TokenizeStep,
    "elf.stages.tokenization:run",
    ("documents", "tokenizer", "vocabulary?"),
    version=1,
    neutral={"data.documents": "file"},
)
PRETRAIN = StageSpec("pretrain", Pretrain, "elf.stages.pretrain:run", ("tokens",), version=1)
ENCODE = StageSpec("encode", Encode, "elf.stages.encode:run", ("tokens", "encoder"), version=1)
TRAIN = StageSpec(
    "train",
    Train,
    "elf.stages.train:run",
    ("tokens", "latents?", "heldout_tokens?", "heldout_latents?"),
    version=2,
    launch=Launch.ACCELERATE,
    worker="elf.stages.worker",
    neutral={"accumulate": 1, "method": "flow", "embeddings": None},
)
DISTILL = StageSpec(
    "distill",
    DistillRound,
    "elf.stages.distill:run",
    ("teacher", "start", "tokens", "latents", "heldout_tokens?", "heldout_latents?"),
    version=1,
    launch=Launch.ACCELERATE,
    worker="elf.stages.worker",
)
WEIGHTS = StageSpec(
    "weights", WeightsStep, "elf.stages.imported:run", ("checkpoint", "tokenizer", "latents?"), version=1
)
SAMPLE = StageSpec(
    "sample",
    Sample,
    "elf.stages.sample:run",
    ("model", "tokens", "latents?"),
    version=1,
    launch=Launch.EITHER,
    worker="elf.stages.worker",
    neutral={"trajectories": 0, "over": None, "precision": "float32", "temperature": 1.0, "top_p": 1.0},
)
CONTROL = StageSpec(
    "control",
    Control,
    "elf.stages.control:run",
    ("tokens", "heldout?"),
    version=1,
    neutral={"words": 12, "split": "validation"},
)
EVALUATE = StageSpec(
    "evaluate", Evaluate, "elf.stages.evaluate:run", ("samples", "tokens", "heldout?", "judge?"), version=5
)
REPORT = StageSpec(
    "report",
    ReportStep,
    "elf.stages.report:run",
    ("train", "tokens", "latents?", "distilled/*", "samples/*", "scores/*", "controls/*"),
    version=1,
    neutral={"report.entropy": None, "report.published": None},
)
STAGES: Mapping[str, StageSpec[Any]] = {
    spec.name: spec
    for spec in (
        FETCH,
        TOKENIZER,
        TOKENIZE,
        PRETRAIN,
        ENCODE,
        TRAIN,
        WEIGHTS,
        DISTILL,
        SAMPLE,
        CONTROL,
        EVALUATE,
        REPORT,
    )
}


class _Builder:
    """Collects the steps of one experiment; each method adds a part of the graph and returns step names."""

    def __init__(self, experiment: Experiment, locate: Callable[[Asset], Located]) -> None:
        self.experiment = experiment
        self.locate = locate
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
        compute = self.experiment.compute.of(spec.name)
        self.steps[name] = Step(name, spec, section, dict(inputs), compute, prefix, places)
        return name

    @property
    def encodes(self) -> bool:
        """Whether anything is made of stored latents."""
        return self.experiment.train.encodes

    def fetch(self, name: str, asset: Asset, prefix: str) -> str:
        """The step that brings ``asset``; two roles of one asset share a step's key, not its name."""
        return self.add(f"fetch-{name}", FETCH, self.locate(asset), {}, prefix)

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

    def tokens(self) -> dict[Split, str]:
        """Tokenize steps of every split there is."""
        data, settings = self.experiment.data, self.experiment.tokenize
        self.fetch("train", data.train.asset, "data.train.asset")
        own = settings.tokenizer is not None or settings.subwords is not None
        if self.experiment.encode.encoder is not None and (self.encodes or not own):
            self.fetch("encoder", self.experiment.encode.encoder, "encode.encoder")
        tokenizer = self.tokenizer()
        sources: dict[Split, Source | None] = {
            "train": data.train,
            "validation": data.train if data.holdout else data.validation,
            "test": data.test,
        }
        made: dict[Split, str] = {}
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
            places = {"data": f"data.{split}", "holdout": "data.holdout"}
            made[split] = self.add(_of("tokenize", split), TOKENIZE, section, inputs, "", **places)
        return made

    def encode(self, split: Split, corpus: Mapping[Split, str]) -> str:
        """The encode step of a split."""
        pretrain = self.experiment.pretrain
        encoder = "fetch-encoder"
        if pretrain is not None:
            encoder = self.add("pretrain", PRETRAIN, pretrain, {"tokens": "tokenize"}, "pretrain")
        inputs = {"tokens": corpus[split], "encoder": encoder}
        return self.add(_of("encode", split), ENCODE, self.experiment.encode, inputs, "encode")

    def train(self, corpus: Mapping[Split, str]) -> str:
        train = self.experiment.train
        if self.experiment.weights is not None:
            return self.imported(self.experiment.weights, corpus)
        return self.add("train", TRAIN, train, self.learnt_from(train, corpus), "train")

    def learnt_from(self, section: Training, corpus: Mapping[Split, str]) -> dict[str, str]:
        """What every training run takes: its own split, and the held-out one where it looks at that; only their tokens
        where nothing is encoded."""
        splits: dict[str, Split] = {"": "train"}
        if section.heldout is not None and "validation" in corpus:
            splits["heldout_"] = "validation"
        inputs: dict[str, str] = {}
        for prefix, split in splits.items():
            inputs[f"{prefix}tokens"] = corpus[split]
            if self.encodes:
                inputs[f"{prefix}latents"] = self.encode(split, corpus)
        return inputs

    def distill(self, model: str, corpus: Mapping[Split, str]) -> dict[int, str]:
        """The rounds by their students' steps, each started from the one before."""
        settings, made, start = self.experiment.distill, dict[int, str](), model
        if settings is None:
            return made
        shared = settings.model_dump(include=set(Teaching.model_fields))
        for steps in settings.rounds:
            section = DistillRound(**shared, student_steps=steps, span_steps=settings.teacher_steps // steps)
            inputs = {"teacher": model, "start": start, **self.learnt_from(section, corpus)}
            places = {"student_steps": "distill.rounds", "span_steps": "distill.teacher_steps"}
            start = self.add(f"distill-{steps}", DISTILL, section, inputs, "distill", **places)
            made[steps] = start
        return made

    def imported(self, weights: Weights, corpus: Mapping[Split, str]) -> str:
        """Takes the place of training: a step of the same name."""
        experiment, train = self.experiment, self.experiment.train
        section = WeightsStep(
            tokenize=experiment.tokenize,
            pairs=experiment.data.train.pairs,
            model=train.model,
            latents=train.latents,
            objective=train.objective,
        )
        inputs = {"checkpoint": self.fetch("weights", weights.asset, "weights.asset")}
        inputs["tokenizer"] = self.steps["tokenize"].inputs["tokenizer"]
        if experiment.data.train.pairs and experiment.sample:
            inputs["latents"] = self.encode(experiment.sample[0].split, corpus)
        places = {name: f"train.{name}" for name in ("model", "latents", "objective")}
        return self.add("train", WEIGHTS, section, inputs, "", **places)

    def texts(self, corpus: Mapping[Split, str]) -> dict[str, str]:
        """Sample and control steps by the name their scores go by."""
        made: dict[str, str] = {}
        for setting in self.experiment.sample:
            inputs = {"model": setting.model, "tokens": corpus["train"]}
            if self.experiment.data.train.pairs:
                inputs["tokens"] = corpus[setting.split]
                if self.encodes:
                    inputs["latents"] = self.encode(setting.split, corpus)
            name = f"sample-{setting.name}"
            made[setting.name] = self.add(name, SAMPLE, setting, inputs, setting.place, **setting.places)
        for index, control in enumerate(self.experiment.evaluate.controls):
            heldout = {"heldout": corpus[control.split]} if control.split in corpus else {}
            inputs = {"tokens": corpus["train"], **heldout}
            name = f"control-{control.kind}"
            made[control.kind] = self.add(name, CONTROL, control, inputs, f"evaluate.controls.{index}")
        return made

    def scores(self, texts: Mapping[str, str], corpus: Mapping[Split, str]) -> dict[str, str]:
        evaluate = self.experiment.evaluate
        shared = {"tokens": corpus["train"]}
        if "validation" in corpus:
            shared["heldout"] = corpus["validation"]
        if evaluate.judge is not None:
            shared["judge"] = self.fetch("judge", evaluate.judge.asset, "evaluate.judge.asset")
        return {
            name: self.add(f"evaluate-{name}", EVALUATE, evaluate, {"samples": step, **shared}, "evaluate")
            for name, step in texts.items()
        }


def _of(stage: str, split: Split) -> str:
    return stage if split == "train" else f"{stage}-{split}"


def plan_experiment(experiment: Experiment, locate: Callable[[Asset], Located] = locate) -> Plan:
    """The plan of an experiment. Local input files are read, by ``locate``, to know their digests; nothing else is
    touched."""
    builder = _Builder(experiment, locate)
    corpus = builder.tokens()
    model = builder.train(corpus)
    students = builder.distill(model, corpus)
    texts = builder.texts(corpus)
    scores = builder.scores(texts, corpus)
    inputs = {"train": model, "tokens": corpus["train"]}
    inputs |= {role: step for role, step in builder.steps[model].inputs.items() if role == "latents"}
    inputs |= {f"distilled/{steps}": step for steps, step in students.items()}
    inputs |= {
        f"{'samples' if step.startswith('sample-') else 'controls'}/{name}": step
        for name, step in texts.items()
    }
    inputs |= {f"scores/{name}": step for name, step in scores.items()}
    section = ReportStep(experiment=experiment.name, report=experiment.report)
    report = builder.add("report", REPORT, section, inputs, "")
    # The page counts the stored rows where there are any; nothing is encoded for that.
    builder.steps[report] = replace(builder.steps[report], ties={"latents": Tie.GLANCE})
    return Plan(builder.steps.values())
