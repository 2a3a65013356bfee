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

from pydantic import Field, JsonValue, field_validator, model_validator

from elf.pipeline.section import Section

MOST = 200
"""Variants of one sweep."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A name, and settings by their dotted names."""

    name: str
    settings: Mapping[str, JsonValue]

    @property
    def overrides(self) -> list[str]:
        """As ``--set`` takes them."""
        return [f"{path}={json.dumps(value, ensure_ascii=False)}" for path, value in self.settings.items()]


class Sweep(Section):
    """Every combination of the values in ``over`` with every one of ``variants``."""

    over: Mapping[str, tuple[JsonValue, ...]] = Field(default_factory=dict)
    """Lists of values, by the dotted name of the setting they are for."""
    variants: Mapping[str, Mapping[str, JsonValue]] = Field(default_factory=dict)
    """Settings by their dotted names, under a name for them together: what differs in more than one thing."""

    @field_validator("over", mode="before")
    @classmethod
    def _lists_by_dotted_names(cls, given: object) -> object:
        """``--set sweep.over.train.seed=[0]`` makes sections of what is one name."""
        if not isinstance(given, Mapping):
            return given
        for path, values in given.items():
            if isinstance(values, Mapping):
                flat = json.dumps(dict(_flat(path, values)), ensure_ascii=False)
                raise ValueError(
                    f"it has a section `{path}`, but takes lists by the whole dotted names of settings: give it as "
                    f"one mapping, {flat} (on the command line, --set 'sweep.over={flat}')"
                )
            if not isinstance(values, list | tuple):
                value = json.dumps(values, ensure_ascii=False)
                raise ValueError(
                    f"it has {value} for `{path}`, which is no list; give a list of values, as [{value}]"
                )
        return {path: tuple(values) for path, values in given.items()}

    @model_validator(mode="after")
    def _worth_it(self) -> "Sweep":
        if not self.over and not self.variants:
            raise ValueError(
                "it names nothing to vary; give lists under `over` (`train.seed: [0, 1, 2]`), or sets of settings "
                "under `variants`"
            )
        count = prod(map(len, self.over.values())) * max(len(self.variants), 1)
        if count > MOST:
            raise ValueError(f"these are {count:,} variants, and {MOST} are the most; take fewer values")
        for path, values in self.over.items():
            _check_values(path, values)
            if any(path in settings for settings in self.variants.values()):
                raise ValueError(f"`{path}` is set by a variant and by `over`; leave it to one of them")
        for path in (*self.over, *(path for settings in self.variants.values() for path in settings)):
            if path.partition(".")[0] in ("name", "sweep"):
                raise ValueError(f"`{path}` cannot vary: variants are named by what differs; leave it out")
        often = Counter(variant.name for variant in self.combinations())
        for name, times in often.items():
            if times > 1 or name in ("", "sweep"):
                raise ValueError(
                    f"{times} of its variants would be called '{name}', which is no name for one; give others under "
                    "`variants`"
                )
        return self

    def combinations(self) -> Iterator[Variant]:
        """The variants, the last list varying fastest."""
        called = _short_names(list(self.over))
        for name, settings in (self.variants or {"": {}}).items():
            for values in product(*self.over.values()):
                chosen = dict(zip(self.over, values, strict=True))
                words = [f"{called[path]}={_word(value)}" for path, value in chosen.items()]
                yield Variant("-".join([*([name] if name else []), *words]), {**settings, **chosen})


def _flat(path: str, values: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{path}.{name}", value)
        else:
            yield f"{path}.{name}", value


def _check_values(path: str, values: Sequence[JsonValue]) -> None:
    """A value makes a part of its variant's name."""
    if not values:
        raise ValueError(f"the list of `{path}` is empty; give it a value or more")
    for value in values:
        if isinstance(value, dict | list) or (isinstance(value, str) and ("/" in value or not value.strip())):
            raise ValueError(
                f"`over` has {json.dumps(value, ensure_ascii=False)} for `{path}`, which can be no part of a name; "
                "give the setting under `variants`, with a name for it"
            )
    if len(set(map(_word, values))) != len(values):
        raise ValueError(f"a value of `{path}` stands in its list twice; leave it there once")


def _short_names(paths: Sequence[str]) -> dict[str, str]:
    """The last part of each path, or all of it where two end alike."""
    last = {path: path.rpartition(".")[2] for path in paths}
    often = Counter(last.values())
    return {path: name if often[name] == 1 and not name.isdigit() else path for path, name in last.items()}


def _word(value: JsonValue) -> str:
    """Numbers in the shortest form that reads back as the same number; text as it is."""
    return value if isinstance(value, str) else json.dumps(value).removesuffix(".0")
