"""What a model, its objective and its sampler are, as plain numbers. Importing this costs no torch.

Defaults are those of the paper (arXiv 2605.10938, appendix tables) for ELF on OpenWebText.
Every message of a refused value says what would be right.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

Prediction = Literal["x", "v", "eps"]
Conditioning = Literal["prefix", "adaln"]
Decoder = Literal["shared", "separate"]
TimeSchedule = Literal["logit_normal", "uniform"]
GuidanceLaw = Literal["log_uniform", "power"]
DecodeCondition = Literal["corrupted", "kept"]
Padding = Literal["pad", "eos"]
Method = Literal["ode", "sde"]
Grid = Literal["logit_normal", "uniform", "quantile"]
SdeForm = Literal["released", "paper", "variance_matched"]
LEVELS = 10
"""Bins of the time, equally wide, by which losses are told."""
GRAM_RATIO = 1.5
"""How much longer than wide a matrix is from which on Newton–Schulz goes through its Gram matrix."""
SPECTRAL_RATIO = 4
"""The same from which on a CPU goes through that matrix's eigenvalues."""
PANELS = 4
"""Rows of blocks of a symmetric product at most: 5/8 of it is computed."""
PANEL = 128
"""Rows of a block at least; smaller ones cost more than they spare."""


class Size(NamedTuple):
    """The three numbers that make ELF-B, -M and -L."""

    depth: int
    hidden: int
    heads: int


SIZES: dict[str, Size] = {"B": Size(12, 768, 12), "M": Size(24, 1056, 16), "L": Size(32, 1280, 16)}


def require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)


def require_one_of(name: str, value: object, choices: Any) -> None:
    allowed = get_args(choices)
    require(value in allowed, f"{name} is {value!r}; it must be one of {', '.join(map(repr, allowed))}")


def require_positive(name: str, value: float) -> None:
    require(value > 0, f"{name} is {value}; it must be above 0")


def require_share(name: str, value: float) -> None:
    require(0.0 <= value <= 1.0, f"{name} is {value}; a share lies between 0 and 1")


class Blocks:
    """What every network's blocks are made by."""

    __slots__ = ()
    hidden: int
    depth: int
    heads: int
    dropout: float

    @property
    def head_width(self) -> int:
        return self.hidden // self.heads

    @property
    def feed_width(self) -> int:
        """Inner width of the SwiGLU: two thirds of four times `hidden`, rounded down."""
        return int(4 * self.hidden * 2 / 3)

    def require_blocks(self) -> None:
        for name in ("hidden", "depth", "heads"):
            require_positive(name, getattr(self, name))
        require(
            self.hidden % self.heads == 0,
            f"hidden {self.hidden} does not split into {self.heads} heads; it must be a multiple of heads",
        )
        require(
            self.head_width % 2 == 0,
            f"hidden {self.hidden} over {self.heads} heads gives {self.head_width} numbers a head; rotary embedding "
            "turns pairs, so hidden / heads must be even",
        )
        require(0.0 <= self.dropout < 1.0, f"dropout is {self.dropout}; it must be at least 0 and below 1")


@dataclass(frozen=True, slots=True)
class ModelConfig(Blocks):
    """The network's shape: `width` is the encoder's, `hidden` the trunk's, `length` the trained positions.

    `bottleneck` None means one full projection. A token count of 0 removes that kind of conditioning; under
    "adaln" the counts say only whether guidance and mode exist, since no prefix position is used. `table` says that the
    clean latents are rows of a table of the network's own.
    """

    width: int
    vocabulary: int
    length: int
    hidden: int
    depth: int
    heads: int
    bottleneck: int | None = 128
    time_tokens: int = 4
    guidance_tokens: int = 4
    mode_tokens: int = 4
    dropout: float = 0.0
    prediction: Prediction = "x"
    conditioning: Conditioning = "prefix"
    decoder: Decoder = "shared"
    table: bool = False

    def __post_init__(self) -> None:
        for name in ("width", "vocabulary", "length"):
            require_positive(name, getattr(self, name))
        self.require_blocks()
        require(
            self.bottleneck is None or self.bottleneck > 0,
            f"bottleneck is {self.bottleneck}; give a positive width or null for none",
        )
        require(self.time_tokens > 0, f"time_tokens is {self.time_tokens}; the network needs at least 1")
        for name in ("guidance_tokens", "mode_tokens"):
            require(getattr(self, name) >= 0, f"{name} is {getattr(self, name)}; it must be 0 (none) or more")
        require_one_of("prediction", self.prediction, Prediction)
        require_one_of("conditioning", self.conditioning, Conditioning)
        require_one_of("decoder", self.decoder, Decoder)

    @property
    def prefix(self) -> int:
        """Positions in front of the text."""
        if self.conditioning == "adaln":
            return 0
        return self.time_tokens + self.guidance_tokens + self.mode_tokens

    @property
    def guided(self) -> bool:
        """Whether the network is told the guidance scale."""
        return self.guidance_tokens > 0


@dataclass(frozen=True, slots=True)
class ObjectiveConfig:
    """What one training step draws and minimises. `decode_noise_scale` is 5 for OpenWebText, 1 for pairs."""

    decode_share: float = 0.2
    time_mean: float = -1.5
    time_std: float = 0.8
    time_schedule: TimeSchedule = "logit_normal"
    noise_scale: float = 2.0
    decode_time_mean: float = 0.8
    decode_time_std: float = 0.8
    decode_noise_scale: float = 5.0
    guidance_low: float = 0.5
    guidance_high: float = 5.0
    guidance_law: GuidanceLaw = "log_uniform"
    self_condition: float = 0.5
    condition_dropout: float = 0.0
    min_gap: float = 0.05
    decode_condition: DecodeCondition = "corrupted"
    padding: Padding = "pad"

    def __post_init__(self) -> None:
        for name in ("decode_share", "self_condition", "condition_dropout"):
            require_share(name, getattr(self, name))
        for name in ("time_std", "noise_scale", "decode_time_std", "decode_noise_scale", "min_gap"):
            require_positive(name, getattr(self, name))
        require(
            0.0 <= self.guidance_low <= self.guidance_high,
            f"guidance runs from {self.guidance_low} to {self.guidance_high}; "
            "guidance_low must be at least 0 and at most guidance_high",
        )
        require_one_of("time_schedule", self.time_schedule, TimeSchedule)
        require_one_of("guidance_law", self.guidance_law, GuidanceLaw)
        require_one_of("decode_condition", self.decode_condition, DecodeCondition)
        require_one_of("padding", self.padding, Padding)


@dataclass(frozen=True, slots=True)
class DistillConfig:
    """One round of progressive distillation: the student's one step spans `span` of the path, the teacher takes
    `teacher_steps` steps over it."""

    span: float = 1 / 16
    teacher_steps: int = 4
    student_schedule: TimeSchedule = "logit_normal"
    teacher_schedule: TimeSchedule = "logit_normal"

    def __post_init__(self) -> None:
        require(
            0.0 < self.span <= 1.0, f"span is {self.span}; it is 1 / student steps, above 0 and at most 1"
        )
        require(self.teacher_steps >= 1, f"teacher_steps is {self.teacher_steps}; it must be 1 or more")
        require_one_of("student_schedule", self.student_schedule, TimeSchedule)
        require_one_of("teacher_schedule", self.teacher_schedule, TimeSchedule)


@dataclass(frozen=True, slots=True)
class SamplerConfig:
    """One way to sample.

    `guidance` is the ω a guided network is told; a network without guidance tokens takes
    `self_condition_guidance` instead. `input_guidance` is w, used where there is a condition.
    `self_condition` False is for a network trained with self-condition probability 0: its input is d wide.
    """

    method: Method = "ode"
    steps: int = 64
    grid: Grid = "logit_normal"
    guidance: float = 3.0
    gamma: float = 0.0
    input_guidance: float = 1.0
    sde_form: SdeForm = "released"
    time_mean: float = -1.5
    time_std: float = 0.8
    noise_scale: float = 2.0
    min_gap: float = 0.05
    self_condition: bool = True
    self_condition_guidance: float = 1.0

    def __post_init__(self) -> None:
        require(self.steps >= 1, f"steps is {self.steps}; a sampler needs at least 1 step")
        require(self.gamma >= 0.0, f"gamma is {self.gamma}; it must be 0 or more")
        require(
            self.method == "sde" or self.gamma == 0.0,
            f"gamma is {self.gamma} with method {self.method!r}; gamma belongs to method 'sde' (or set gamma 0)",
        )
        for name in ("time_std", "noise_scale", "min_gap"):
            require_positive(name, getattr(self, name))
        require_one_of("method", self.method, Method)
        require_one_of("grid", self.grid, Grid)
        require_one_of("sde_form", self.sde_form, SdeForm)
