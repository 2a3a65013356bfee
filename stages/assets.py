"""From an asset's URI to what identifies it, before anything is downloaded.

Local files are identified by their bytes (sha256; of a folder, over its sorted relative names and their
digests), wheels by a pinned sha256, hub repositories by a full commit. No stat is trusted: the bytes are read
every time. Hidden names (``.git``, ``.cache``) and ``__pycache__`` are not part of a folder.
"""

import hashlib
import importlib
import json
import os
import re
import stat
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from elf.pipeline.errors import Misconfigured
from elf.pipeline.section import RUNTIME, Section
from elf.stages.config import Asset

FOLDER = "bytes:/"
_SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
_REPO = r"[A-Za-z0-9][\w.-]*"
_FORMS = {
    "path": (re.compile(r"(?P<name>.+)"), "path:FILE_OR_FOLDER"),
    "pypi": (
        re.compile(rf"(?P<name>{_REPO})==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*)(#(?P<inside>.+))?"),
        "pypi:NAME==VERSION#inside/the/wheel",
    ),
    "hub": (
        re.compile(rf"(?P<name>{_REPO}(/{_REPO})?)@(?P<version>[0-9a-f]{{40}})(#(?P<inside>.+))?"),
        "hub:REPO@COMMIT or hub:REPO@COMMIT#FILE, the commit in its 40 hex digits (a branch or tag may move)",
    ),
    "dataset": (
        re.compile(
            rf"(?P<name>{_REPO}(/{_REPO})?)(/(?P<config>{_REPO}))?@(?P<version>[0-9a-f]{{40}})#(?P<inside>.+)"
        ),
        "dataset:OWNER/REPO/CONFIG@COMMIT#SPLIT (CONFIG may be left out), the commit in its 40 hex digits",
    ),
    "python": (re.compile(r"(?P<name>[A-Za-z_][\w.]*)"), "python:MODULE"),
}


class Located(Section):
    """What the fetch stage is given. Its identity is what was asked for, never where it happens to lie."""

    source: str
    """``bytes:.jsonl`` (a local file by its suffix), ``bytes:/`` (a local folder), else the URI."""
    digest: str | None = None
    unpack: Literal["none", "gguf"] = "none"
    location: Annotated[str, RUNTIME] = ""
    """Absolute path of a local file or folder."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The parts of a URI; ``inside`` is a wheel's member prefix, a repository's file or a
    dataset's split."""

    scheme: str
    name: str
    version: str = ""
    config: str | None = None
    inside: str = ""


def parse(uri: str) -> Reference:
    """The parts of ``uri``. Raises Misconfigured where its form is not one of those listed in ``Asset``."""
    scheme, colon, rest = uri.partition(":")
    if not colon or scheme not in _FORMS:
        known = ", ".join(f"{name}:" for name in _FORMS)
        raise Misconfigured(
            f"The asset '{uri}' starts with none of {known}; write path:{uri} for a local file."
        )
    pattern, form = _FORMS[scheme]
    match = pattern.fullmatch(rest)
    if match is None:
        raise Misconfigured(f"The asset '{uri}' must be of the form {form}.")
    parts = {name: value for name, value in match.groupdict().items() if value is not None}
    reference = Reference(scheme, **parts)
    if scheme in ("pypi", "hub") and not _stays_inside(reference.inside):
        raise Misconfigured(
            f"The asset '{uri}' names '{reference.inside}', which is no plain path in it; name a file or a folder "
            "there, without `..`."
        )
    return reference


def locate(asset: Asset) -> Located:
    """What to fetch and how it is identified; reads local bytes, touches no network.

    Raises Misconfigured for a missing file, a wheel without a digest, a digest that differs, a malformed URI.
    """
    reference = parse(asset.uri)
    if asset.digest is not None and not _SHA256.fullmatch(asset.digest):
        raise Misconfigured(
            f"The digest of '{asset.uri}' is '{asset.digest}'; write sha256: and 64 hex digits."
        )
    if reference.scheme == "path":
        return _locate_path(asset, Path(reference.name).expanduser().absolute())
    if reference.scheme == "python":
        return Located(source=asset.uri, digest=_pinned(asset, digest_topics(reference.name)))
    if reference.scheme == "pypi" and asset.digest is None:
        raise Misconfigured(
            f"The asset '{asset.uri}' has no digest; pin the wheel with `digest: sha256:…` (the package "
            "index shows it, and `pip hash WHEEL` computes it)."
        )
    if reference.scheme != "pypi" and asset.digest is not None:
        raise Misconfigured(
            f"The asset '{asset.uri}' is pinned by its commit; its `digest` would not be checked: remove it."
        )
    return Located(source=asset.uri, digest=asset.digest, unpack=asset.unpack)


def _refuse(error: OSError) -> None:
    raise error


def list_files(folder: Path) -> list[tuple[str, Path]]:
    """Relative POSIX name and path of every file below ``folder``, sorted by name; links are followed.

    Raises Misconfigured on a circle of links and on what is neither file nor folder, OSError on a folder that cannot be
    read: a part of a corpus is not the corpus.
    """
    found: list[tuple[str, Path]] = []
    for here, folders, names in os.walk(folder, onerror=_refuse, followlinks=True):
        folders[:] = sorted(name for name in folders if not _hidden(name))
        if any(Path(here, name).resolve() in Path(here).resolve().parents for name in folders):
            raise Misconfigured(f"A link in {here} leads back to a folder above it; remove it.")
        for name in names:
            path = Path(here, name)
            if _hidden(name):
                continue
            if not _is_text(str(path.relative_to(folder))):
                raise Misconfigured(
                    f"The name of the file {os.fsencode(path)!r} is not UTF-8, which no manifest can hold. Give it "
                    "another name."
                )
            if not path.exists() or not stat.S_ISREG(path.stat().st_mode):
                raise Misconfigured(f"{path} is neither a file nor a folder (or a broken link); remove it.")
            found.append((path.relative_to(folder).as_posix(), path))
    return sorted(found)


def _is_text(name: str) -> bool:
    """Whether a name as the system gives it is UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def digest_path(path: Path) -> str:
    """``sha256:…`` of a file's bytes, or of a folder's sorted names with the digests of their bytes."""
    if path.is_dir():
        listing = [[name, digest_path(file)] for name, file in list_files(path)]
        return _sha256(json.dumps(listing, ensure_ascii=False).encode())
    with path.open("rb") as stream:
        return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"


def read_topics(module: str) -> str:
    """JSON lines ``{"id", "text"}``, sorted by id, from the dictionary ``topics`` of a library module.

    Raises Misconfigured for a module outside the standard library or without such a dictionary.
    """
    if module.split(".")[0] not in sys.stdlib_module_names:
        raise Misconfigured(
            f"python:{module} is not of the standard library, whose text alone is named so; take path:FILE for other "
            "text."
        )
    try:
        topics = vars(importlib.import_module(module)).get("topics")
    except ImportError as error:
        raise Misconfigured(
            f"python:{module} cannot be imported here ({error}). Install the whole of Python, or take other text, as "
            "path:FILE."
        ) from error
    if not isinstance(topics, dict) or not all(isinstance(text, str) for text in topics.values()):
        raise Misconfigured(
            f"python:{module} has no dictionary of texts called `topics`; take python:pydoc_data.topics."
        )
    lines = (
        json.dumps({"id": str(name), "text": topics[name]}, ensure_ascii=False) for name in sorted(topics)
    )
    return "".join(f"{line}\n" for line in lines)


def digest_topics(module: str) -> str:
    """``sha256:…`` of what ``read_topics`` gives; it differs between releases of Python."""
    return _sha256(read_topics(module).encode())


def _locate_path(asset: Asset, path: Path) -> Located:
    try:
        digest = _digest_there(asset, path)
    except OSError as error:
        raise Misconfigured(
            f"The asset '{asset.uri}' may not be read: {error}. Make it readable for this user."
        ) from error
    source = FOLDER if path.is_dir() else f"bytes:{path.suffix.lower()}"
    return Located(source=source, digest=_pinned(asset, digest), unpack=asset.unpack, location=str(path))


def _digest_there(asset: Asset, path: Path) -> str:
    if not path.exists():
        raise Misconfigured(
            f"The asset '{asset.uri}' does not exist: there is no {path}. Correct `uri`, or bring the file."
        )
    if path.is_dir() and not list_files(path):
        raise Misconfigured(
            f"The asset '{asset.uri}' is an empty folder: {path}. Put its files there, or correct `uri`."
        )
    return digest_path(path)


def _pinned(asset: Asset, digest: str) -> str:
    if asset.digest not in (None, digest):
        raise Misconfigured(
            f"The asset '{asset.uri}' has the digest {digest}, its configuration says {asset.digest}: bring "
            "the file that was meant or correct `digest`."
        )
    return digest


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__pycache__"


def _stays_inside(inside: str) -> bool:
    parts = PurePosixPath(inside).parts
    return inside == "" or (inside.strip("/") == "/".join(parts) and ".." not in parts and "\\" not in inside)


def _sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
