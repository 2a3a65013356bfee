"""Where a result comes from: the artifacts behind it, as rows in the order they were needed, joined by arcs.

Manifests name the keys of their inputs, so the way up is walked through the store the inputs lie in. An artifact
that has left the store is still a row: its key is known, what it was is not. One that was never stored, since what was
made of it made it by itself, is described beside that.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from elf.cache.manifest import MANIFEST, Manifest, short
from elf.cache.store import Artifact
from elf.pipeline.descriptions import read_description

ROW = 30
"""Height of a row in the drawing, px."""
GUTTER = 76
"""Width of the drawing, px."""
DOT = GUTTER - 7


@dataclass(slots=True)
class Node:
    """One artifact: `name` for people, `inputs` the keys it was built from; no manifest where it is gone; not `stored`
    where only its description is there."""

    name: str
    key: str
    manifest: Manifest | None
    inputs: tuple[str, ...] = ()
    origin: str = ""
    """In words: the inputs' names, or the address of what came from outside."""
    stored: bool = True
    folder: Path | None = None
    """Where it lies."""

    @property
    def short_key(self) -> str:
        return short(self.key)

    @property
    def seconds(self) -> float | None:
        """Seconds its stage ran, as its manifest says."""
        return self.manifest.provenance.seconds if self.manifest is not None and self.stored else None


@dataclass(frozen=True, slots=True)
class Arc:
    """A curve from an input's row to its user's, as an SVG path; `level` 0 … 1 says how far it reaches."""

    path: str
    start: int
    end: int


def trace(inputs: Mapping[str, Artifact], steps: Mapping[str, str] = MappingProxyType({})) -> list[Node]:
    """`inputs` by their names for people, and everything above them; each node after its own inputs. `steps` has what
    a run calls its artifacts, by their keys; what is not among them goes by its stage and what it is used for."""
    found: dict[str, Node] = {}
    for name, artifact in inputs.items():
        key = str(artifact.manifest.fingerprint)
        found[key] = Node(name, key, artifact.manifest, _keys(artifact.manifest), folder=artifact.path)
    waiting = [(artifact.manifest, artifact.path.parent.parent) for artifact in inputs.values()]
    while waiting:
        manifest, store = waiting.pop()
        for role, key in sorted(manifest.inputs.items()):
            if key in found:
                continue
            above, stored = _find(store, key), True
            if above is None:
                above, stored = read_description(_folder(store, manifest), role), False
            if above is None:
                found[key] = Node(f"{steps.get(key, role)} (not in this store)", key, None)
                continue
            name = steps.get(key) or _call(above, role)
            name = name if stored else f"{name} (never stored)"
            place = _folder(store, above) if stored else None
            found[key] = Node(name, key, above, _keys(above), stored=stored, folder=place)
            waiting.append((above, store))
    nodes = _ordered(found)
    for node in nodes:
        outside = node.manifest.config.get("source") if node.manifest is not None else None
        node.origin = str(outside or "") or ", ".join(found[key].name for key in node.inputs)
    return nodes


def time_of(nodes: Iterable[Node]) -> float:
    """Seconds that the stages behind these artifacts ran, each when it was built, in whichever run that was."""
    return sum(node.seconds for node in nodes if node.seconds is not None)


def arcs(nodes: list[Node]) -> list[Arc]:
    """Curves left of the rows; long ones reach farther out than short ones."""
    rows = {node.key: i for i, node in enumerate(nodes)}
    drawn: list[Arc] = []
    for end, node in enumerate(nodes):
        for key in node.inputs:
            start = rows[key]
            reach = (DOT - 6) * min(1.0, 0.16 + 0.84 * ((end - start) / max(len(nodes) - 1, 1)) ** 0.6)
            top, bottom = start * ROW + ROW / 2, end * ROW + ROW / 2
            out = DOT - reach * 4 / 3  # a cubic's extreme is three quarters of the way to its handles
            drawn.append(
                Arc(f"M{DOT} {top:g}C{out:.1f} {top:g} {out:.1f} {bottom:g} {DOT} {bottom:g}", start, end)
            )
    return drawn


def _keys(manifest: Manifest) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(key) for _, key in sorted(manifest.inputs.items())))


def _find(store: Path, key: str) -> Manifest | None:
    place = next(store.glob(f"*/{key}/{MANIFEST}"), None)
    return Manifest.from_json(place.read_bytes()) if place is not None else None


def _folder(store: Path, manifest: Manifest) -> Path:
    return store / manifest.stage / manifest.fingerprint


def _call(manifest: Manifest, role: str) -> str:
    return manifest.stage if manifest.stage == role else f"{manifest.stage} · {role.replace('_', ' ')}"


def _ordered(found: Mapping[str, Node]) -> list[Node]:
    """Inputs before what uses them, and as near to it as can be."""
    placed: dict[str, Node] = {}

    def place(node: Node) -> None:
        if node.key in placed:
            return
        for key in node.inputs:
            place(found[key])
        placed[node.key] = node

    for node in found.values():
        place(node)
    return list(placed.values())
