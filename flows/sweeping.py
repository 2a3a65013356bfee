"""A sweep as a command works on it: its variants, each an experiment of its own, and what they have in common."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import cast

from elf.flows.request import Request, load_request, shipped_folder
from elf.pipeline.config import load_experiment
from elf.pipeline.errors import Misconfigured
from elf.pipeline.plan import Planned
from elf.stages.assets import Located, locate
from elf.stages.config import Asset, Experiment


@dataclass(frozen=True, slots=True)
class Member:
    """One variant: its name within the sweep, what ``elf run`` is told for it, and what that asks for."""

    variant: str
    overrides: tuple[str, ...]
    request: Request

    @property
    def run(self) -> str:
        """Its name under ``runs/``."""
        return self.request.experiment.name


@dataclass(frozen=True, slots=True)
class Members:
    """The variants of a sweep called ``name``; where ``until`` names a stage or step, each up to that."""

    name: str
    config: str
    members: tuple[Member, ...]
    until: str | None = None

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def steps(self, member: Member) -> tuple[Planned, ...]:
        """Those of one variant, inputs first."""
        plan = member.request.plan
        within = set(plan.names() if self.until is None else plan.upstream(plan.select(self.until)))
        return tuple(planned for planned in plan if planned.step.name in within)

    def distinct(self) -> Mapping[str, Planned]:
        """The steps of all variants by their keys, each once, inputs first."""
        return {planned.key: planned for member in self.members for planned in self.steps(member)}

    def shared(self) -> frozenset[str]:
        """Keys that more than one variant has."""
        often = Counter(key for member in self.members for key in {each.key for each in self.steps(member)})
        return frozenset(key for key, times in often.items() if times > 1)


def load_sweep(
    config: str,
    overrides: Sequence[str],
    store: str | None,
    *,
    until: str | None = None,
    called: str = "--set",
) -> Members:
    """Read, vary, validate and plan; all variants, before anything is built. ``until``: a stage or step they end with.
    ``called`` is what the overrides are known as to whoever gave them. Raises Misconfigured for anything wrong with one
    of them, and where one has no such stage or step."""
    whole = load_experiment(config, Experiment, overrides, shipped_folder(), called=called)
    if whole.sweep is None:
        raise Misconfigured(
            f"The configuration {config} has no section `sweep`, which would say what varies. Give it one, or a list "
            "on the command line: --set 'sweep.over={train.seed: [0, 1, 2]}'."
        )
    members: list[Member] = []
    # A corpus is read once for all variants.
    locate_once = cast("Callable[[Asset], Located]", cache(locate))
    for variant in whole.sweep.combinations():
        name = json.dumps(f"{whole.name}-{variant.name}", ensure_ascii=False)
        told = (*overrides, "sweep=null", f"name={name}", *variant.overrides)
        try:
            request = load_request(config, told, store, called="sweep", locate=locate_once)
        except Misconfigured as error:
            raise Misconfigured(
                f"{error} That is the variant {variant.name} of the sweep: correct its values, or leave it out."
            ) from error
        members.append(Member(variant.name, told, request))
    _refuse_twins(members)
    if until is not None:
        for member in members:
            member.request.plan.select(until)
    return Members(whole.name, config, tuple(members), until)


def _refuse_twins(members: Sequence[Member]) -> None:
    """Variants that come to the same would stand as two results and be one."""
    seen: dict[frozenset[str], str] = {}
    for member in members:
        keys = frozenset(each.key for each in member.request.plan if each.step.spec.name != "report")
        if keys in seen:
            raise Misconfigured(
                f"The variants {seen[keys]} and {member.variant} of the sweep come to the same keys: what differs "
                "between them changes no result. Leave one of them out."
            )
        seen[keys] = member.variant
