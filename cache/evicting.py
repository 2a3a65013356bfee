"""Keeps what was pulled under a limit: copies go, the least recently used first.

Only what the remote still holds with the same content may go; never what was built here, is pinned, or is used by a
living process. A copy is taken away as a collector does it, so that no reader begins while it goes.
"""

from typing import NamedTuple

from elf.cache.collector import collecting_alone, take_away
from elf.cache.errors import Damaged
from elf.cache.lease import Lease
from elf.cache.pins import is_pinned
from elf.cache.pulled import Copy, copies, forget_pulled, is_pulled
from elf.cache.remote import Remote
from elf.cache.store import Store
from elf.cache.uses import forget_use, mark, users


class Evicted(NamedTuple):
    """The copies that went, and the bytes by which the limit is exceeded all the same."""

    gone: tuple[Copy, ...]
    over: int


def make_room(store: Store, remote: Remote, *, limit: int, coming: int) -> Evicted:
    """Let copies go until `coming` more bytes fit below `limit`, as far as any may go."""
    found = sorted(copies(store), key=lambda copy: copy.used)
    over = sum(copy.bytes for copy in found) + coming - limit
    if over <= 0:
        return Evicted((), 0)
    gone: list[Copy] = []
    with collecting_alone(store.root) as collector:
        for copy in found:
            if over > 0 and _is_held(remote, copy) and _evict(store, collector, copy):
                gone.append(copy)
                over -= copy.bytes
    return Evicted(tuple(gone), max(0, over))


def _is_held(remote: Remote, copy: Copy) -> bool:
    """Whether it can be had again."""
    try:
        held = remote.find(*copy.place)
    except Damaged:
        return False
    return held is not None and held.manifest.content == copy.artifact.manifest.content


def _evict(store: Store, collector: Lease, copy: Copy) -> bool:
    if _reason(store, copy) is not None:  # no lease is taken in vain
        return False
    why = take_away(store.root, collector, copy.artifact.path, copy.place, lambda: _reason(store, copy))
    if why is not None:
        return False
    forget_use(store.root, copy.place)
    forget_pulled(store.root, copy.place)
    return True


def _reason(store: Store, copy: Copy) -> str | None:
    """Why a copy stays."""
    if is_pinned(store.root, copy.place):
        return "pinned"
    if not is_pulled(store.root, copy.artifact):
        return "built anew since"
    if any(mark(copy.place) in holder.uses for holder in users(store.root)):
        return "in use"
    return None if store.last_use(*copy.place) <= copy.used else "used just now"
