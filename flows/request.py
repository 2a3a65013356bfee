"""What a command or a flow is asked for: a configuration, its overrides and a store, loaded and planned."""

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from elf.cache.files import free_bytes
from elf.cache.manifest import MANIFEST
from elf.cache.store import Artifact, Store
from elf.pipeline.config import load_experiment
from elf.pipeline.errors import Misconfigured
from elf.pipeline.plan import Plan, Planned
from elf.stages.assets import Located, locate
from elf.stages.config import Asset, Experiment
from elf.stages.experiment import plan_experiment
from elf.stages.sources import Choice, settle
from elf.stages.train_settings import Training

RUNS = Path("runs")


@dataclass(frozen=True, slots=True)
class Request:
    """An experiment with its plan and the store it is looked up in; ``source`` says where training's latents come
    from, and is None where nothing is to be trained."""

    experiment: Experiment
    plan: Plan
    store: Store
    source: Choice | None = None

    def begun(self, planned: Planned) -> int:
        """Bytes that an earlier try of a step left half-built."""
        return self.store.begun(*planned.place)

    def trains(self, steps: Collection[str]) -> bool:
        """Whether one of ``steps`` is a training run that is not finished."""
        return any(
            isinstance(planned.step.section, Training)
            and not (self.store.path(*planned.place) / MANIFEST).exists()
            for planned in map(self.plan.__getitem__, steps)
        )


def load_request(
    config: str,
    overrides: Sequence[str],
    store: str | None,
    *,
    called: str = "--set",
    locate: Callable[[Asset], Located] = locate,
) -> Request:
    """Read, validate and plan. Raises Misconfigured for anything wrong with the request.

    ``called``: what the overrides are known as to whoever gave them. ``locate``: what reads local input files for
    their digests.
    """
    experiment = load_experiment(config, Experiment, overrides, shipped_folder(), called=called)
    opened = open_store(store)

    def find(planned: Planned) -> Artifact | None:
        return opened.find(*planned.place)

    def room(planned: Planned) -> int:
        return free_bytes(opened.root) + opened.begun(*planned.place)

    plan, source = settle(plan_experiment(experiment, locate), experiment, find, room)
    return Request(experiment, plan, opened, source)


def open_store(store: str | None) -> Store:
    """The store: the option, else ``$ELF_STORE``, else ``./store``. Raises Misconfigured for a file."""
    path = Path(store or os.environ.get("ELF_STORE") or "store").expanduser()
    here = path.absolute()
    there = next(each for each in (here, *here.parents) if each.exists())
    if not there.is_dir():
        raise Misconfigured(
            f"The store cannot be {here}, for {there} is a file; name another with --store or ELF_STORE."
        )
    return Store(path)


def shipped_folder() -> Path:
    """Where the configurations that come with the product lie."""
    return Path(str(files("elf.configs")))
