"""The manifest: what an artifact is, what lies in it and where it came from.

`manifest.json` is written last and is the only sign that an artifact is complete. Reading is strict: a field
too many, too few or of another type, or a path that could leave the folder, makes the manifest damaged.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import PurePosixPath
from typing import NewType, TypeAlias, TypeVar, cast

from elf.cache.errors import CacheError, Damaged

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"
Fingerprint = NewType("Fingerprint", str)
T = TypeVar("T")

FORMAT = 1
MANIFEST = "manifest.json"
AUX = "aux"
SEAL = "digest"
"""Field that digests all the others."""
_HEX64 = re.compile(r"[0-9a-f]{64}")
_XXH3 = re.compile(r"xxh3:[0-9a-f]{32}")
_STAGE = re.compile(r"[a-z][a-z0-9_]*")


def short(fingerprint: str) -> str:
    """The 12 hex digits that people are shown."""
    return fingerprint[:12]


def check_name(stage: str, key: str) -> None:
    """Refuse a stage or key that could not be a folder of the store."""
    if not _STAGE.fullmatch(stage):
        raise CacheError(
            f"{stage!r} cannot name a stage: a name must be of lower-case letters, digits and _ alone."
        )
    if not _HEX64.fullmatch(key):
        raise CacheError(f"{key!r} is no key of stage {stage}: a key must be 64 lower-case hex digits.")


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size of one file in bytes and its digest, "xxh3:" and 32 hex digits (xxh3_128 of the content)."""

    bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Provenance:
    """How an artifact came to be; never part of a key or of `content`."""

    git: str | None  # commit; None outside a work tree
    dirty: bool | None
    argv: tuple[str, ...]
    host: str
    python: str
    versions: Mapping[str, str]
    started: str  # ISO 8601, UTC
    seconds: float


@dataclass(frozen=True, slots=True)
class Manifest:
    """`files` is the payload by relative path, `aux` what lies under aux/; `content` digests `files`."""

    stage: str
    version: int
    fingerprint: Fingerprint
    identity: Mapping[str, JSON]
    config: Mapping[str, JSON]
    inputs: Mapping[str, Fingerprint]
    content: str
    files: Mapping[str, FileRecord]
    aux: Mapping[str, FileRecord]
    facts: Mapping[str, JSON]
    provenance: Provenance

    @property
    def place(self) -> tuple[str, Fingerprint]:
        """Stage and key."""
        return self.stage, self.fingerprint

    @property
    def every_file(self) -> dict[str, FileRecord]:
        """Payload and auxiliary files."""
        return {**self.files, **self.aux}

    @property
    def payload_bytes(self) -> int:
        return sum(record.bytes for record in self.files.values())

    @property
    def all_bytes(self) -> int:
        """Of payload and auxiliary files."""
        return sum(record.bytes for record in self.every_file.values())

    def to_json(self) -> str:
        """Text of manifest.json, keys sorted, with a digest of all it says.

        Raises CacheError where a value is not plain data.
        """
        try:
            plain = {"format": FORMAT, **asdict(self)}
            plain[SEAL] = seal(plain)
            return json.dumps(plain, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n"
        except (TypeError, ValueError) as error:
            raise CacheError(
                f"The manifest of {self.stage} {short(self.fingerprint)} cannot be written: {error}. What it holds "
                "must be plain, finite data."
            ) from error

    @classmethod
    def from_json(cls, text: str | bytes) -> "Manifest":
        """The manifest that `to_json` wrote. Raises Damaged, naming the field, on anything else; of earlier versions'
        manifests, which have no digest, it knows the payload's alone."""
        try:
            plain = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise Damaged(f"not JSON ({error})") from error
        names = [field.name for field in fields(cls)]
        top = dict(_mapping(plain, "the top level"))
        sealed = top.pop(SEAL, None)
        top = _object(top, "the top level", ["format", *names])
        if top["format"] != FORMAT:
            raise Damaged(f"field 'format' is {top['format']!r}, this version reads {FORMAT}")
        manifest = cls(
            stage=_text(top["stage"], "stage"),
            version=_typed(top["version"], int, "version"),
            fingerprint=Fingerprint(_match(_HEX64, top["fingerprint"], "fingerprint")),
            identity=_mapping(top["identity"], "identity"),
            config=_mapping(top["config"], "config"),
            inputs={
                name: Fingerprint(_match(_HEX64, key, f"inputs.{name}"))
                for name, key in _mapping(top["inputs"], "inputs").items()
            },
            content=_match(_HEX64, top["content"], "content"),
            files=_files(top["files"], "files"),
            aux=_files(top["aux"], "aux"),
            facts=_mapping(top["facts"], "facts"),
            provenance=_provenance(top["provenance"]),
        )
        _check_places(manifest)
        if sealed is not None and sealed != seal(top):
            raise Damaged(f"what it says was changed: its digest is {sealed!r:.80}, and would be {seal(top)}")
        return manifest


def read_manifest(text: str | bytes, place: tuple[str, Fingerprint], *, where: object, cure: str) -> Manifest:
    """The manifest that stands at `where`. Raises Damaged, with the cure, if it is none or another artifact's."""
    try:
        manifest = Manifest.from_json(text)
    except Damaged as fault:
        raise Damaged(f"{where} is damaged: {fault}. {cure}") from fault
    if manifest.place != place:
        raise Damaged(f"{where} belongs to {manifest.stage} {short(manifest.fingerprint)}. {cure}")
    return manifest


def seal(plain: Mapping[str, JSON]) -> str:
    """sha256 over what a manifest says, 64 hex, whatever the order and spacing of its text."""
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def merkle_root(files: Mapping[str, FileRecord]) -> str:
    """sha256 over the payload's (path, bytes, digest), sorted by path: 64 hex, equal iff the bytes are."""
    lines = [[path, files[path].bytes, files[path].digest] for path in sorted(files)]
    return hashlib.sha256(json.dumps(lines, separators=(",", ":")).encode()).hexdigest()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _check_places(manifest: Manifest) -> None:
    for name in manifest.files:
        if name == MANIFEST or name.split("/")[0] == AUX:
            raise Damaged(f"field 'files' names {name!r}, which is not payload")
    for name in manifest.aux:
        if name.split("/")[0] != AUX:
            raise Damaged(f"field 'aux' names {name!r}, which does not lie under {AUX}/")
    root = merkle_root(manifest.files)
    if manifest.content != root:
        raise Damaged(f"field 'content' is {manifest.content}, its files give {root}")


def _files(value: JSON, where: str) -> dict[str, FileRecord]:
    out: dict[str, FileRecord] = {}
    for path, record in _mapping(value, where).items():
        parts = PurePosixPath(path).parts
        if not parts or path != "/".join(parts) or path.startswith("/") or ".." in parts or "\0" in path:
            raise Damaged(f"field '{where}' names {path!r}, which is not a plain path inside the artifact")
        entry = _object(record, f"{where}.{path}", ["bytes", "digest"])
        size = _typed(entry["bytes"], int, f"{where}.{path}.bytes")
        if size < 0:
            raise Damaged(f"field '{where}.{path}.bytes' is {size}")
        out[path] = FileRecord(size, _match(_XXH3, entry["digest"], f"{where}.{path}.digest"))
    return out


def _provenance(value: JSON) -> Provenance:
    names = [field.name for field in fields(Provenance)]
    entry = {name: (item, f"provenance.{name}") for name, item in _object(value, "provenance", names).items()}
    git, dirty, seconds = entry["git"][0], entry["dirty"][0], entry["seconds"][0]
    return Provenance(
        git=None if git is None else _text(*entry["git"]),
        dirty=None if dirty is None else _typed(dirty, bool, "provenance.dirty"),
        argv=tuple(_text(item, "provenance.argv") for item in _list(*entry["argv"])),
        host=_text(*entry["host"]),
        python=_text(*entry["python"]),
        versions={k: _text(v, f"provenance.versions.{k}") for k, v in _mapping(*entry["versions"]).items()},
        started=_text(*entry["started"]),
        seconds=float(seconds) if type(seconds) is int else _typed(seconds, float, "provenance.seconds"),
    )


def _object(value: JSON, where: str, names: list[str]) -> dict[str, JSON]:
    entry = _mapping(value, where)
    if unknown := sorted(entry.keys() - set(names)):
        raise Damaged(f"{where} has the unknown field {unknown[0]!r}")
    if missing := [name for name in names if name not in entry]:
        raise Damaged(f"{where} lacks the field {missing[0]!r}")
    return entry


def _mapping(value: JSON, where: str) -> dict[str, JSON]:
    return cast("dict[str, JSON]", _typed(value, dict, where))


def _list(value: JSON, where: str) -> list[JSON]:
    return cast("list[JSON]", _typed(value, list, where))


def _text(value: JSON, where: str) -> str:
    return _typed(value, str, where)


def _match(pattern: re.Pattern[str], value: JSON, where: str) -> str:
    text = _text(value, where)
    if not pattern.fullmatch(text):
        raise Damaged(f"field '{where}' is {text!r}, not of the form {pattern.pattern}")
    return text


def _typed(value: object, kind: type[T], where: str) -> T:
    """Exact type, so that true is no int."""
    if type(value) is not kind:
        raise Damaged(f"field '{where}' is {value!r:.60}, not {kind.__name__}")
    return cast("T", value)
