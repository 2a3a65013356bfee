"""What a person means by KEY: the start of a key, ``stage/start``, a step of a run, or a path of either."""

import os
import re
from pathlib import Path

from elf.cache.errors import CacheError
from elf.cache.manifest import Fingerprint, check_name, short
from elf.cache.store import Artifact, Store
from elf.cache.uses import Place
from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.runs import RESOLVED, read_run

KEY_START = re.compile(r"[0-9a-f]{4,64}")
"""How the start of a key looks."""
_SHORT = re.compile(r"[0-9a-f]{1,3}")
"""A slip of the hand more likely than a key."""


def find_place(text: str, store: Store, runs: Path) -> Place:
    """Stage and key of the artifact that ``text`` means, damaged or not.

    Raises Failed where there is none, Misconfigured where ``text`` fits several or can mean none at all.
    """
    found = _by_key(text, store) or _by_run(text, store, runs) or _by_path(text, store)
    if len(found) > 1:
        several = ", ".join(f"{stage}/{short(key)}" for stage, key in sorted(found))
        raise Misconfigured(f"'{text}' fits several artifacts: {several}. Give more of the key.")
    if not found:
        hint = "`elf cache ls` lists what there is"
        start = text.rpartition("/")[2]
        if _SHORT.fullmatch(start) or not (KEY_START.fullmatch(start) or "/" in text):
            raise Misconfigured(
                f"'{text}' is no key: give the start of one (four hexadecimal digits or more), STAGE/START, or a step "
                f"of a run such as tiny/encode; {hint}."
            )
        raise Failed(f"There is no artifact '{text}' in {store.root}; {hint}.")
    return found[0]


def find_artifact(text: str, store: Store, runs: Path) -> Artifact:
    """The artifact itself. Raises as ``find_place``, and Damaged where it cannot be read."""
    place = find_place(text, store, runs)
    artifact = store.find(*place)
    if artifact is None:
        stage, key = place
        raise Failed(
            f"{stage} {short(key)} is not in {store.root}; `elf run` with the experiment it belongs to builds it again."
        )
    return artifact


def _by_key(text: str, store: Store) -> list[Place]:
    stage, _, start = text.rpartition("/")
    if not KEY_START.fullmatch(start) or "/" in stage:
        return []
    places = [
        (path.parent.name, Fingerprint(path.name))
        for path in store.root.glob(f"{stage or '[a-z]*'}/{start}*")
    ]
    return sorted(place for place in places if _is_place(place))


def _by_run(text: str, store: Store, runs: Path) -> list[Place]:
    """A step of a run in ``runs``: what its link leads to, if that lies in this store."""
    parts = Path(text).parts[-2:] if text.startswith(f"{runs}/") else Path(text).parts
    if len(parts) != 2 or not (runs / parts[0] / RESOLVED).is_file():
        return []
    record = read_run(runs, parts[0])
    if parts[1] in record.broken:
        link = record.path / parts[1]
        return _inside(link, store) or _gone(text, link)
    artifact = record.steps.get(parts[1])
    if artifact is None:
        run, step = parts
        known = ", ".join(record.steps) or "none"
        raise Failed(f"The run '{run}' has no step '{step}'; it has: {known}.")
    return _inside(artifact.path, store) or _elsewhere(text, artifact.path)


def _by_path(text: str, store: Store) -> list[Place]:
    path = Path(text).expanduser()
    return (_inside(path, store) or _elsewhere(text, path)) if path.is_dir() else []


def _inside(path: Path, store: Store) -> list[Place]:
    """The place of a path in the store, if that is where it leads."""
    real = Path(os.path.realpath(path))
    place = real.parent.name, Fingerprint(real.name)
    inside = real.parent.parent == Path(os.path.realpath(store.root))
    return [place] if inside and real.is_dir() and _is_place(place) else []


def _gone(text: str, link: Path) -> list[Place]:
    raise Failed(f"'{text}' leads to {link.readlink()}, which is gone; `elf run` builds it again.")


def _elsewhere(text: str, path: Path) -> list[Place]:
    real = Path(os.path.realpath(path))
    raise Failed(f"'{text}' is {real}, which is no artifact of this store; name its store with --store.")


def _is_place(place: Place) -> bool:
    try:
        check_name(*place)
    except CacheError:
        return False
    return True
