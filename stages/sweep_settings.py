"""The section ``sweep`` of a configuration: experiments that differ from it in a few settings.

    sweep:
      over: {train.model.bottleneck: [32, 128, 512]}
      variants:
        prefix: {}
        adaln: {train.model.conditioning: adaln}

is six experiments, ``prefix-bottleneck=32`` to ``adaln-bottleneck=512``. Each is the configuration with these settings,
as ``--set`` would have it; what two of them have in common has one key and is built once.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Annotated

from pydantic import Field, JsonValue, model_validator

from elf.pipeline.section import Section

MOST = 200
"""Variants of one sweep."""
Scalar = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Variant:
    """A name, and settings by their dotted names."""

    name: str
    settings: Mapping[str, JsonValue]

    @property
    def overrides(self) -> list[str]:
        """As ``--set`` takes them."""
        return [f"{path}={json.dumps(value)}" for path, value in self.settings.items()]


class Sweep(Section):
    """Every combination of the values in ``over`` with every one of ``variants``."""

    over: Mapping[str, Annotated[tuple[Scalar, ...], Field(min_length=1)]] = Field(default_factory=dict)
    """Lists of values, by the dotted name of the setting they are for."""
    variants: Mapping[str, Mapping[str, JsonValue]] = Field(default_factory=dict)
    """Settings by their dotted names, under a name for them together: what differs in more than one thing."""

    @model_validator(mode="after")
    def _worth_it(self) -> "Sweep":
        if not self.over and not self.variants:
            raise ValueError(
                "it names nothing to vary; give lists under `over` (`train.seed: [0, 1, 2]`), or sets of settings "
                "under `variants`"
            )
        for path, values in self.over.items():
            if len(set(map(repr, values))) != len(values):
                raise ValueError(f"a value of `{path}` stands in its list twice")
            if any(path in settings for settings in self.variants.values()):
                raise ValueError(f"`{path}` is set by a variant and by `over`; leave it to one of them")
        count = prod(map(len, self.over.values())) * max(len(self.variants), 1)
        if count > MOST:
            raise ValueError(f"these are {count:,} variants, and {MOST} are the most; take fewer values")
        return self

    def combinations(self) -> Iterator[Variant]:
        """The variants, the last list varying fastest."""
        called = _short_names(list(self.over))
        for name, settings in (self.variants or {"": {}}).items():
            for values in product(*self.over.values()):
                chosen = dict(zip(self.over, values, strict=True))
                words = [f"{called[path]}={_word(value)}" for path, value in chosen.items()]
                yield Variant("-".join([*([name] if name else []), *words]), {**settings, **chosen})


def _short_names(paths: Sequence[str]) -> dict[str, str]:
    """The last part of each path, or all of it where two end alike."""
    last = {path: path.rpartition(".")[2] for path in paths}
    often = Counter(last.values())
    return {path: name if often[name] == 1 and not name.isdigit() else path for path, name in last.items()}


def _word(value: Scalar) -> str:
    """Numbers in the shortest form that reads back as the same number; text as it is."""
    return value if isinstance(value, str) else json.dumps(value).removesuffix(".0")
