"""The sections of a configuration that say what is trained and how: ``train``, and ``distill`` after it."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from elf.pipeline.section import RUNTIME, Section
from elf.stages.fields import Positive, Precision, Seed, Share
from elf.stages.model.config import TimeSchedule
from elf.stages.model.token_config import TokenMethod


class Model(Section):
    """The network; ``size`` sets depth, hidden and heads, which may also be given one by one."""

    size: Literal["B", "M", "L"] | None = None
    depth: Positive | None = None
    hidden: Positive | None = None
    heads: Positive | None = None
    bottleneck: Positive | None = 128
    time_tokens: Positive = 4
    guidance_tokens: Annotated[int, Field(ge=0)] = 4
    mode_tokens: Annotated[int, Field(ge=0)] = 4
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    prediction: Literal["x", "v", "eps"] = "x"
    conditioning: Literal["prefix", "adaln"] = "prefix"
    decoder: Literal["shared", "separate"] = "shared"

    @model_validator(mode="after")
    def _shape_known(self) -> "Model":
        if self.size is None and None in (self.depth, self.hidden, self.heads):
            raise ValueError("give `size: B`, `M` or `L`, or all of `depth`, `hidden` and `heads`")
        return self


class Latents(Section):
    """x = (state − mean) / std, applied on reading."""

    mean: float = 0.0
    std: Annotated[float, Field(gt=0)] | Literal["measured"] = 0.2
    """0.2 is t5-small's; ``measured`` takes mean and deviation from the store's facts."""


class Objective(Section):
    """The training objective; names and defaults as in ``elf.stages.model.config.ObjectiveConfig``."""

    decode_share: Share = 0.2
    time_schedule: Literal["logit_normal", "uniform"] = "logit_normal"
    time_mean: float = -1.5
    time_std: Annotated[float, Field(gt=0)] = 0.8
    noise_scale: Annotated[float, Field(gt=0)] = 2.0
    decode_time_mean: float = 0.8
    decode_time_std: Annotated[float, Field(gt=0)] = 0.8
    decode_noise_scale: Annotated[float, Field(gt=0)] = 5.0
    guidance_low: Annotated[float, Field(ge=0)] = 0.5
    guidance_high: Annotated[float, Field(ge=0)] = 5.0
    guidance_law: Literal["log_uniform", "power"] = "log_uniform"
    self_condition: Share = 0.5
    condition_dropout: Share = 0.0
    decode_condition: Literal["corrupted", "kept"] = "corrupted"
    padding: Literal["pad", "eos"] = "eos"


class Optim(Section):
    """Optimiser, learning-rate schedule, clipping and weight averaging."""

    name: Literal["muon", "adamw"] = "muon"
    lr: Annotated[float, Field(gt=0)] = 2e-3
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_steps: Annotated[int, Field(ge=0)] | None = None
    warmup_epochs: Annotated[float, Field(ge=0)] | None = None
    min_lr: Annotated[float, Field(ge=0)] = 0.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    clip: Annotated[float, Field(gt=0)] = 1.0
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.9999

    @model_validator(mode="after")
    def _one_warmup(self) -> "Optim":
        if self.warmup_steps is not None and self.warmup_epochs is not None:
            raise ValueError("give the warm-up once, as `warmup_steps` or as `warmup_epochs`")
        return self


class Heldout(Section):
    """Loss on the validation split, on the same rows and draws every time."""

    every: Positive
    """Steps between two measurements."""
    rows: Positive = 64


class Training(Section):
    """What every training run has, whatever it learns."""

    optim: Optim = Optim()
    batch: Positive = 512
    """Rows per optimiser step, over all processes."""
    accumulate: Positive = 1
    """Groups a step's rows are dealt into; its loss is the mean of the groups' means. 1: one mean over all of them.
    For memory alone, leave it and set ``compute.train.batch``."""
    steps: Positive | None = None
    epochs: Annotated[float, Field(gt=0)] | None = None
    precision: Precision = "float32"
    seed: Seed = 0
    heldout: Heldout | None = None
    save_every: Annotated[int, RUNTIME, Field(ge=1)] = 1000
    """Steps between two checkpoints."""
    keep: Annotated[int, RUNTIME, Field(ge=1)] = 2
    """Checkpoints kept while training."""

    @model_validator(mode="after")
    def _one_length(self) -> "Training":
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give the length of training once, as `steps` or as `epochs`")
        if self.batch % self.accumulate:
            raise ValueError(
                f"`batch` ({self.batch} rows) must be a multiple of `accumulate` ({self.accumulate} groups)"
            )
        return self


class Embeddings(Section):
    """A table of embeddings that is learnt with the network; its rows have unit size."""

    width: Positive = 512
    """d."""


class Train(Training):
    """The training run."""

    method: Literal["flow", TokenMethod] = "flow"
    """What is trained. The others are baselines of equal size on the same tokens, without latents: ``autoregressive``,
    each token from those before it, and ``masked``, masked diffusion (MDLM)."""
    model: Model
    embeddings: Embeddings | None = None
    """Learnt with the network, in the place of an encoder's states; of tokens alone, nothing is encoded or stored."""
    latents: Latents = Latents()
    objective: Objective = Objective()

    @property
    def encodes(self) -> bool:
        """Whether it takes an encoder's states: baselines and learnt embeddings do not."""
        return self.method == "flow" and self.embeddings is None


class Teaching(Training):
    """What all rounds of a distillation have."""

    student_schedule: TimeSchedule = "logit_normal"
    """Where a student's step begins, as a share of what its length leaves free."""
    teacher_schedule: TimeSchedule = "logit_normal"
    """How the teacher's steps lie within it."""


class Distill(Teaching):
    """Rounds of progressive distillation of the trained model into samplers of few steps.

    The teacher is the averaged trained model in all of them; each round starts from the averaged student of the one
    before, the first from the teacher.
    """

    rounds: Annotated[tuple[Positive, ...], Field(min_length=1)] = (16, 8, 4, 2, 1)
    """Steps of each round's student from noise to text."""
    teacher_steps: Positive = 64
    """Steps of the teacher over the same way: of 64, each step of a 16-step student spans 4."""

    @model_validator(mode="after")
    def _whole_spans(self) -> "Distill":
        if any(later >= earlier for earlier, later in zip(self.rounds, self.rounds[1:], strict=False)):
            raise ValueError(
                f"`rounds` is {list(self.rounds)}; each student takes fewer steps than the one before it"
            )
        for steps in self.rounds:
            if self.teacher_steps % steps:
                raise ValueError(
                    f"`teacher_steps` ({self.teacher_steps}) must be a multiple of every round's steps, and "
                    f"{steps} does not divide it"
                )
        return self


class DistillRound(Teaching):
    """What the distill stage is given: one round."""

    student_steps: Positive
    """Steps of the student from noise to text."""
    span_steps: Positive
    """Steps of the teacher within one of the student's."""
