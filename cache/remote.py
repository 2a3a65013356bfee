"""A remote store: finished artifacts below a URL, each one whole or absent.

    <url>/<stage>/<key>/manifest.json      created once, after everything else, and never replaced
    <url>/<stage>/<key>/<seal>/<file>      the files it names; `seal` is the sha256 of the manifest's text

Two that push other bytes under one key write into other folders, and one of them gets the manifest in: nothing
ever mixes. A seal that fits also says that the manifest itself is the one that was pushed.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from elf.cache.errors import CacheError
from elf.cache.manifest import MANIFEST, Fingerprint, Manifest, check_name, read_manifest
from elf.cache.remote_address import check_address
from elf.cache.remote_faults import asking

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PART: Final = 8 << 20
"""Bytes moved at once; a file of more than 9,000 parts gets larger ones, because S3 counts to 10,000."""
_MOST_PARTS = 9_000
_CONNECT, _REQUEST, _RETRY = "5s", "90s", timedelta(seconds=20)
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


@dataclass(frozen=True, slots=True)
class Held:
    """A finished artifact of a remote store; `folder` is where its files lie, relative to the URL."""

    manifest: Manifest
    folder: str

    def path(self, name: str) -> str:
        """Where one of its files lies."""
        return f"{self.folder}/{name}"

    def bytes(self) -> int:
        """Of all its files, auxiliary ones too."""
        return self.manifest.all_bytes


class Remote:
    """What can be asked of the store at `url`; the network is first touched when something is.

    Every method raises Unreachable if the answer does not come, and BadRemote if it is that there is no such
    place or that it is not open to us.
    """

    def __init__(self, url: str) -> None:
        check_address(url)
        self.url = url.rstrip("/")
        self._opened: ObjectStore | None = None

    def __str__(self) -> str:
        return self.url

    def find(self, stage: str, key: Fingerprint) -> Held | None:
        """The finished artifact, or None. Raises Damaged where its manifest cannot be read."""
        check_name(stage, key)
        path = f"{stage}/{key}/{MANIFEST}"
        try:
            text = self._get(path)
        except FileNotFoundError:
            return None
        manifest = read_manifest(text, (stage, key), where=f"{self}/{path}", cure=self.cure(stage, key))
        return Held(manifest, folder_of(stage, key, text))

    def keys(self) -> Iterator[tuple[str, Fingerprint]]:
        """Stage and key of everything that was ever begun there, in order; `find` tells what is finished."""
        for stage in self._folders(""):
            for key in self._folders(stage):
                with suppress(CacheError):  # what else lies there is nothing of ours
                    check_name(stage, key)
                    yield stage, Fingerprint(key)

    def sizes(self, folder: str) -> dict[str, int]:
        """Bytes of every file below a folder, by its path relative to it."""
        import obstore

        with asking(self.url):
            chunks = obstore.list(self._store(), folder)  # pyright: ignore[reportUnknownMemberType]
            listed = [meta for chunk in chunks for meta in chunk]
        return {meta["path"].removeprefix(f"{folder}/"): meta["size"] for meta in listed}

    def put(self, path: str, content: bytes) -> None:
        """Put a small file there whole."""
        import obstore

        with asking(self.url):
            obstore.put(self._store(), path, content, use_multipart=False)

    def stream(self, path: str, parts: Iterator[bytes], *, part: int) -> None:
        """Put a file there in parts of `part` bytes; if `parts` raises, nothing appears and it is raised here."""
        import obstore

        with asking(self.url):
            obstore.put(self._store(), path, parts, use_multipart=True, chunk_size=part, max_concurrency=2)

    def create(self, path: str, content: bytes) -> bool:
        """Put a file there unless one is there: whether this one got in."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with asking(self.url):
            try:
                obstore.put(self._store(), path, content, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
        return True

    def read(self, path: str, start: int, end: int) -> memoryview:
        """Bytes `start` to `end` of a file. Raises FileNotFoundError if there is none."""
        import obstore

        with asking(self.url):
            return memoryview(obstore.get_range(self._store(), path, start=start, end=end))

    def cure(self, stage: str, key: str) -> str:
        """What helps where an artifact is damaged there."""
        return f"Delete {self}/{stage}/{key} and push it again from a host that has it."

    def _get(self, path: str) -> bytes:
        import obstore

        with asking(self.url):
            return obstore.get(self._store(), path).bytes().to_bytes()

    def _folders(self, prefix: str) -> list[str]:
        import obstore

        with asking(self.url):
            listed = obstore.list_with_delimiter(self._store(), prefix or None)  # pyright: ignore[reportUnknownMemberType]
        return sorted(path.rsplit("/", 1)[-1] for path in listed["common_prefixes"])

    def _store(self) -> "ObjectStore":
        """The connection, made at the first question: the library is loaded only then."""
        if self._opened is None:
            from obstore.store import from_url

            plain = any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)
            self._opened = from_url(
                self.url,
                client_options={"connect_timeout": _CONNECT, "timeout": _REQUEST, "allow_http": plain},
                retry_config={"max_retries": 5, "retry_timeout": _RETRY},
            )
        return self._opened


def folder_of(stage: str, key: str, text: bytes) -> str:
    """Where the files of the artifact lie whose manifest has this text."""
    return f"{stage}/{key}/{hashlib.sha256(text).hexdigest()}"


def part_size(size: int) -> int:
    """Bytes of one part of a file of `size` bytes: whole mebibytes, and as few as the protocol allows."""
    return max(PART, -(-size // _MOST_PARTS >> 20) << 20)
