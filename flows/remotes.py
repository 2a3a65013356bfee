"""Which remote store a command or a flow uses: ``$ELF_REMOTE``, and ``$ELF_REMOTE_LIMIT`` for what came from it."""

import os
import re
from collections.abc import Callable

from elf.cache.errors import BadRemote
from elf.cache.remote import Remote
from elf.pipeline.errors import Misconfigured
from elf.pipeline.sharing import NOWHERE, Elsewhere, ReadThrough

REMOTE, LIMIT = "ELF_REMOTE", "ELF_REMOTE_LIMIT"
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([kMGTP]?)(i?)B?)?\s*", re.IGNORECASE)


def elsewhere(tell: Callable[[str], None]) -> Elsewhere:
    """Where a run takes from what it misses; nowhere without ``$ELF_REMOTE``. Raises Misconfigured."""
    limit = read_limit()
    if not os.environ.get(REMOTE):
        return NOWHERE
    return ReadThrough(named_remote(), limit=limit, tell=tell)


def named_remote() -> Remote:
    """The remote of ``$ELF_REMOTE``. Raises Misconfigured if there is none or it cannot be an address."""
    url = os.environ.get(REMOTE)
    if not url:
        raise Misconfigured(
            f"No remote is named. Set {REMOTE}, for example {REMOTE}=s3://bucket/prefix or {REMOTE}=file:///mnt/share."
        )
    try:
        return Remote(url)
    except BadRemote as fault:
        raise Misconfigured(f"{REMOTE}: {fault}") from fault


def read_limit() -> int | None:
    """Bytes that pulled artifacts may take here altogether; None: as many as there is room for."""
    text = os.environ.get(LIMIT)
    if not text:
        return None
    match = _SIZE.fullmatch(text)
    if match is None:
        raise Misconfigured(
            f"{LIMIT} is {text!r}; it must be a number of bytes such as 500GB, 1.5TB or 64GiB."
        )
    number, letter, binary = match.groups()
    power = "kmgtp".index(letter.lower()) + 1 if letter else 0
    return int(float(number) * (1024 if binary else 1000) ** power)
