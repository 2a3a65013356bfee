"""The list `sample` of a configuration: sampling settings, and entries that stand for every combination of values.

    - {name: sde, gamma: 1.5, over: {guidance: [1, 2, 3], steps: [16, 32]}}

is six settings, `sde-steps=16-guidance=1` to `sde-steps=32-guidance=3`. They are written out when the configuration is
read: what comes after knows single settings only, with the keys they would have had one by one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from elf.pipeline.section import LINKED, RUNTIME, Section
from elf.stages.fields import FolderName, NotNegative, Positive, Precision
from elf.stages.model.config import Grid, Method, SdeForm
from elf.stages.model.token_config import TokenMethod

MOST = 100
"""Sampling settings of one experiment; each is sampled and judged by itself."""

READINGS = 16
"""Steps that are read at most, the end apart."""

WeightsKind = Literal["ema", "raw"]
TopShare = Annotated[float, Field(gt=0, le=1)]
SampleMethod = Literal[Method, TokenMethod]
OF_FLOWS = ("grid", "guidance", "gamma", "input_guidance", "sde_form", "trajectories")
OF_TOKENS = ("temperature", "top_p")
"""Settings that flows and the baselines alone have a use for."""
T = TypeVar("T")


def _each_once(values: tuple[T, ...]) -> tuple[T, ...]:
    if not values:
        raise ValueError("it is empty; give one value or more")
    if len(set(values)) != len(values):
        raise ValueError("a value stands in it twice; write each once")
    return values


Values = Annotated[tuple[T, ...], AfterValidator(_each_once)]


class Over(Section):
    """Lists of values in the place of one; every combination of them is a setting of its own."""

    method: Values[SampleMethod] | None = None
    steps: Values[Positive] | None = None
    grid: Values[Grid] | None = None
    guidance: Values[NotNegative] | None = None
    gamma: Values[NotNegative] | None = None
    input_guidance: Values[NotNegative] | None = None
    sde_form: Values[SdeForm] | None = None
    temperature: Values[NotNegative] | None = None
    top_p: Values[TopShare] | None = None
    weights: Values[WeightsKind] | None = None
    precision: Values[Precision] | None = None

    def lists(self) -> dict[str, Sequence[Any]]:
        """The settings that are swept, each with its values, in the order above."""
        return {
            name: values for name in type(self).model_fields if (values := getattr(self, name)) is not None
        }


class Sample(Section):
    """One sampling setting, or with `over` many; the seeds of a setting share one artifact."""

    name: Annotated[FolderName, RUNTIME]
    """Names the instances ``sample-NAME`` and ``evaluate-NAME``; with ``over`` what is swept follows it."""
    student: Annotated[Positive | None, LINKED] = None
    """The distilled model to sample, by its number in ``distill.rounds``; the trained one when absent."""
    method: SampleMethod = "sde"
    """Of a flow ``ode`` or ``sde``; of a baseline its ``train.method``."""
    steps: Positive = 32
    grid: Grid = "logit_normal"
    guidance: NotNegative = 3.0
    """ω, the self-condition guidance."""
    gamma: NotNegative = 1.5
    """γ, how much noise an SDE step puts back."""
    input_guidance: NotNegative = 1.0
    """w, guidance on the condition (pairs only)."""
    sde_form: SdeForm = "released"
    temperature: NotNegative = 1.0
    """Of a baseline: divides the logits; 0 takes the most probable token."""
    top_p: TopShare = 1.0
    """Of a baseline: only the most probable tokens that together hold this share are chosen from."""
    weights: WeightsKind = "ema"
    precision: Precision = "float32"
    """``bf16``: the network's blocks in bfloat16, faster where the hardware has it; some percent of the ids change."""
    count: Positive = 64
    """Texts per seed (unconditional); pairs give one output per row of the split."""
    seeds: tuple[int, ...] = (0,)
    split: Literal["validation", "test"] = "validation"
    trajectories: Annotated[int, Field(ge=0, le=16)] = 0
    """How many of the first texts of the first seed are read at every stage of their making, for the report."""
    over: Over | None = None
    """Lists in the place of single values: `{guidance: [1, 2, 3], steps: [16, 32]}` makes six settings of this one."""
    _place: str = PrivateAttr("")
    _swept: tuple[str, ...] = PrivateAttr(())

    @model_validator(mode="after")
    def _worth_sweeping(self) -> "Sample":
        lists = self.over.lists() if self.over is not None else {}
        if self.over is not None and not lists:
            raise ValueError(f"`over` is empty; give it lists of {', '.join(Over.model_fields)}")
        unused = [name for name in ("gamma", "sde_form") if name in lists]
        if unused and set(lists.get("method", (self.method,))) != {"sde"}:
            raise ValueError(
                f"an ODE has no use for `{unused[0]}`, so its settings would be the same texts several times; sweep it "
                "in an entry of its own with `method: sde`"
            )
        return self

    @model_validator(mode="after")
    def _of_one_method(self) -> "Sample":
        lists = self.over.lists() if self.over is not None else {}
        for method in lists.get("method", (self.method,)):
            of_tokens = method in get_args(TokenMethod)
            strange = OF_FLOWS if of_tokens else OF_TOKENS
            if method == "autoregressive":
                strange = ("steps", *strange)
            given = [name for name in strange if name in lists or self._differs(name)]
            if given:
                known = ", ".join(OF_TOKENS + (("steps",) if method == "masked" else ()))
                raise ValueError(
                    f"`method: {method}` has no use for {', '.join(f'`{name}`' for name in given)}; leave "
                    f"{'it' if len(given) == 1 else 'them'} out"
                    + (
                        f" (of its own it has {known})"
                        if of_tokens
                        else f" (of baselines only: {', '.join(get_args(TokenMethod))})"
                    )
                )
        return self

    def _differs(self, name: str) -> bool:
        return getattr(self, name) != type(self).model_fields[name].default

    @property
    def model(self) -> str:
        """Name of the step whose weights it samples."""
        return "train" if self.student is None else f"distill-{self.student}"

    @property
    def place(self) -> str:
        """Where it stands in the configuration it was read from, `sample.0`; empty outside of one."""
        return self._place

    @property
    def places(self) -> dict[str, str]:
        """Where its swept settings stand: `sample.0.over.guidance` by `guidance`."""
        return {name: f"{self._place}.over.{name}" for name in self._swept}

    def combinations(self) -> Iterator["Sample"]:
        """The settings that `over` stands for, the last list varying fastest; itself without one."""
        if self.over is None:
            yield self
            return
        lists = self.over.lists()
        shared = {name: getattr(self, name) for name in self.model_fields_set - {"over", "name", *lists}}
        for values in product(*lists.values()):
            chosen = dict(zip(lists, values, strict=True))
            made = Sample(name=_name(self.name, chosen), **shared, **chosen)
            made._swept = tuple(lists)
            yield made


def write_out(entries: Iterable[Sample]) -> tuple[Sample, ...]:
    """Every setting of the list. Raises ValueError where there are more than MOST."""
    entries = tuple(entries)
    count = sum(
        prod(map(len, entry.over.lists().values())) if entry.over is not None else 1 for entry in entries
    )
    if count > MOST:
        raise ValueError(
            f"these are {count:,} sampling settings, and each is sampled and judged by itself; {MOST} are the most. "
            "Take fewer values, or run several experiments: they share everything up to the trained model"
        )
    made: list[Sample] = []
    for index, entry in enumerate(entries):
        for setting in entry.combinations():
            setting._place = f"sample.{index}"
            made.append(setting)
    return tuple(made)


def steps_read(steps: int) -> tuple[int, ...]:
    """The steps before which is read: all of a few, else READINGS evenly spaced ones, the first and last among them."""
    if steps <= READINGS:
        return tuple(range(steps))
    return tuple(round(place * (steps - 1) / (READINGS - 1)) for place in range(READINGS))


def _name(name: str, chosen: Mapping[str, Any]) -> str:
    """`sde-steps=16-guidance=0.5`; numbers in the shortest form that reads back as the same number."""
    told = [
        f"{field}={repr(value).removesuffix('.0') if not isinstance(value, str) else value}"
        for field, value in chosen.items()
    ]
    return "-".join([name, *told])
