"""What can go wrong with bytes on disk. Each message is one paragraph: what, where, and the cure."""

AGAIN = "Build it again: run its stage with --force."
"""What helps where something in a store is damaged and only its place is known."""


class CacheError(Exception):
    """Anything the cache refuses; the text is meant for the person at the terminal."""


class Damaged(CacheError):
    """A file is missing, cut, changed or does not say what it should; nothing was read from it."""


class NotFinite(CacheError):
    """A row holds NaN or an infinity (or a cast that overflowed); it never enters a store."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


class StoreBusy(CacheError):
    """Somebody else holds the lease on what was to be written."""


class Unwritable(CacheError):
    """The disk is full, read-only or not ours; the message names the path and the free bytes."""


class Unreachable(CacheError):
    """A remote store does not answer now; nothing is known of what it holds."""


class BadRemote(CacheError):
    """The address or the credentials of a remote store are wrong: waiting does not help."""
