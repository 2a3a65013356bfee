"""What a run asks of artifacts that lie elsewhere: are they there, and may I have them?"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol

from elf.cache.errors import BadRemote, Damaged, Unreachable
from elf.cache.evicting import make_room
from elf.cache.lease import OnWait
from elf.cache.manifest import Manifest, short
from elf.cache.pulling import pull
from elf.cache.remote import Remote
from elf.cache.store import Artifact, Store
from elf.cache.transfers import Meter
from elf.cache.uses import Place
from elf.pipeline.errors import Misconfigured
from elf.pipeline.plan import Planned
from elf.pipeline.progress import Progress
from elf.pipeline.wording import bytes_text

MEGABYTE = 1e6


class Elsewhere(Protocol):
    """A place that may hold what a step would build."""

    def holds(self, planned: Planned) -> bool:
        """Whether the finished artifact is there; no if that cannot be known."""
        ...

    def manifest(self, planned: Planned) -> Manifest | None:
        """What the artifact that is there says of itself."""
        ...

    def bring(
        self, planned: Planned, store: Store, *, progress: Progress, on_wait: OnWait
    ) -> Artifact | None:
        """Have it in the store; None, and never again that it is held, if it does not come."""
        ...


class Nowhere:
    """Holds nothing."""

    def holds(self, planned: Planned) -> bool:
        return False

    def manifest(self, planned: Planned) -> Manifest | None:
        return None

    def bring(
        self, planned: Planned, store: Store, *, progress: Progress, on_wait: OnWait
    ) -> Artifact | None:
        return None


NOWHERE = Nowhere()


class ReadThrough:
    """A remote store, asked once per key and only for what is missing here; nothing is ever sent to it.

    One that cannot be reached is left alone for the rest of the run: `tell` is told, and what is missing is built.
    One that says at the first question that address or credentials are wrong raises Misconfigured.
    """

    def __init__(self, remote: Remote, *, limit: int | None, tell: Callable[[str], None]) -> None:
        self.remote = remote
        self._limit, self._tell = limit, tell
        self._answers: dict[Place, Manifest | None] = {}
        self._answered = self._lost = False

    def manifest(self, planned: Planned) -> Manifest | None:
        place = planned.place
        if place not in self._answers:
            self._answers[place] = None if self._lost else self._ask(place)
        return self._answers[place]

    def holds(self, planned: Planned) -> bool:
        return self.manifest(planned) is not None

    def bring(
        self, planned: Planned, store: Store, *, progress: Progress, on_wait: OnWait
    ) -> Artifact | None:
        place = planned.place
        try:
            pulled = pull(
                store,
                self.remote,
                *place,
                meter=meter_of(progress, f"pull {planned.step.name}"),
                on_wait=on_wait,
                make_room=lambda coming: keep_below(
                    store, self.remote, limit=self._limit, coming=coming, tell=progress.note
                ),
            )
        except Damaged as fault:
            self._tell(f"{fault} '{planned.step.name}' is built here instead.")
            pulled = None
        except (Unreachable, BadRemote) as fault:
            self._lose(fault)
            pulled = None
        if pulled is None:
            self._answers[place] = None
            return None
        return pulled.artifact

    def _ask(self, place: Place) -> Manifest | None:
        try:
            held = self.remote.find(*place)
        except Damaged as fault:
            self._tell(f"{fault} Until then it is as good as absent.")
            held = None
        except BadRemote as fault:
            if not self._answered:
                raise Misconfigured(str(fault)) from fault
            self._lose(fault)
            return None
        except Unreachable as fault:
            self._lose(fault)
            return None
        self._answered = True
        return None if held is None else held.manifest

    def _lose(self, fault: Unreachable | BadRemote) -> None:
        self._lost = True
        self._answers = dict.fromkeys(self._answers)
        self._tell(f"{fault} This run goes on without it: what is missing here is built here.")


def promised(planned: Planned, store: Store, remote: Elsewhere) -> Artifact | None:
    """What `remote` holds of a step, as it will lie in the store once it is brought."""
    manifest = remote.manifest(planned)
    return None if manifest is None else Artifact(store.path(*planned.place), manifest)


def meter_of(progress: Progress, label: str) -> Meter:
    """Shows the bytes of a transfer as a bar."""

    @contextmanager
    def meter(total: int, done: int) -> Generator[Callable[[int], None]]:
        with progress.bar(label, total / MEGABYTE, unit="MB", done=done / MEGABYTE) as bar:
            yield lambda count: bar.advance(count / MEGABYTE)

    return meter


def keep_below(
    store: Store, remote: Remote, *, limit: int | None, coming: int, tell: Callable[[str], None]
) -> None:
    """Let copies go, least recently used first, so that the pulled ones stay below `limit` bytes, and say so."""
    if limit is None:
        return
    evicted = make_room(store, remote, limit=limit, coming=coming)
    for copy in evicted.gone:
        stage, key = copy.place
        tell(f"removed the copy of {stage} {short(key)}, {bytes_text(copy.bytes)}: the remote holds it")
    if evicted.over:
        tell(
            f"pulled artifacts will take {bytes_text(evicted.over)} more than ELF_REMOTE_LIMIT allows: the others are "
            "pinned, in use, or no longer at the remote"
        )
