"""What a stage is: a pure function from (its section, its input artifacts) to a folder of files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import Field

from elf.cache.manifest import JSON, Manifest
from elf.cache.store import Artifact
from elf.pipeline.progress import Progress
from elf.pipeline.section import RUNTIME, Section

C = TypeVar("C", bound=Section)


class Launch(Enum):
    """Where a stage's entry runs."""

    INLINE = "inline"
    """In the calling process."""
    ACCELERATE = "accelerate"
    """In a supervised child of ``accelerate launch``, one process per rank."""
    EITHER = "either"
    """Inline, or by accelerate where several processes are asked for."""


class Compute(Section):
    """How, never what: every field is runtime and outside every key."""

    device: Annotated[Literal["auto", "cpu", "cuda"], RUNTIME] = "auto"
    threads: Annotated[int | None, RUNTIME, Field(ge=1)] = None
    """Threads of one process; all cores when absent."""
    workers: Annotated[int | None, RUNTIME, Field(ge=1)] = None
    """Processes of a stage that works part by part (tokenize, encode)."""
    batch: Annotated[int | None, RUNTIME, Field(ge=1)] = None
    """Rows handled at once where the number of rows does not change the result, rounding apart (train, sample,
    evaluate)."""
    batch_tokens: Annotated[int, RUNTIME, Field(ge=1)] = 4096
    """Tokens per encoder call."""
    scheduler: Annotated[str | None, RUNTIME] = None
    """Address of a Dask scheduler, ``tcp://…``; a local cluster when absent."""
    processes: Annotated[int, RUNTIME, Field(ge=1)] = 1
    """Ranks of ``accelerate launch``."""
    accelerate_config: Annotated[str | None, RUNTIME] = None
    """Path of an accelerate config file, for several hosts."""

    @property
    def several(self) -> bool:
        """Whether more than the calling process is asked for."""
        return self.processes > 1 or self.accelerate_config is not None


@dataclass(frozen=True, slots=True)
class Unbuilt:
    """An input that is known but need not lie in the store: what it would be made of, by which settings.

    ``manifest`` is what its own would say, of files none; ``inputs`` are those of its inputs that are there.
    """

    manifest: Manifest
    section: Section
    compute: Compute
    inputs: Mapping[str, Artifact]


@dataclass(frozen=True, slots=True)
class StageContext:
    """All a stage may touch besides its section.

    ``unbuilt`` has the roles of inputs that this step makes for itself, and of those it does without.
    """

    out: Path
    """The private folder to fill; what an interrupted run left here is here again."""
    inputs: Mapping[str, Artifact]
    compute: Compute
    progress: Progress
    unbuilt: Mapping[str, Unbuilt] = field(default_factory=dict[str, Unbuilt])
    steps: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the run calls its artifacts, by their keys; never a reason for other bytes but on a page for people."""

    @property
    def aux(self) -> Path:
        """Folder for logs and clock readings: kept with the artifact, outside its content digest."""
        folder = self.out / "aux"
        folder.mkdir(exist_ok=True)
        return folder


Run = Callable[[Any, StageContext], Mapping[str, JSON]]
"""A stage's entry: fills ``context.out`` and returns the facts for the manifest."""


@dataclass(frozen=True, slots=True)
class StageSpec(Generic[C]):
    """A stage as the engine sees it; its code is imported only when it runs.

    ``inputs`` are role names; a trailing ``?`` marks an optional role and ``*`` any number of roles with that
    prefix (``scores/*`` takes ``scores/ode``, ``scores/sde``).
    """

    name: str
    section: type[C]
    entry: str
    inputs: tuple[str, ...]
    version: int
    launch: Launch = Launch.INLINE
    worker: str = ""
    """Module that ``accelerate launch -m`` starts."""
    neutral: Mapping[str, JSON] = field(default_factory=lambda: MappingProxyType({}))

    def resolve(self) -> Run:
        """Import the entry, ``package.module:function``."""
        module, _, function = self.entry.partition(":")
        return getattr(import_module(module), function)

    def launched(self, compute: Compute) -> bool:
        """Whether the entry runs in children of ``accelerate launch`` under these settings."""
        return self.launch is Launch.ACCELERATE or (self.launch is Launch.EITHER and compute.several)

    def accepts(self, role: str) -> bool:
        """Whether ``role`` is one of this stage's inputs."""
        return any(
            role.startswith(name[:-1]) if name.endswith("*") else role == name.rstrip("?")
            for name in self.inputs
        )

    def required(self) -> tuple[str, ...]:
        """Roles without which the stage cannot be planned."""
        return tuple(name for name in self.inputs if not name.endswith(("?", "*")))
