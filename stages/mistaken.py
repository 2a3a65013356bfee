"""What a file is that stands where a model's weights should: a git-LFS pointer, a web page, or nothing at all."""

from pathlib import Path

from elf.pipeline.errors import Failed

_SEEN = 512
"""Bytes at the head of a file that are looked at."""


def mistaken(path: Path) -> str | None:
    """What the file is instead and what helps, as the end of a sentence without its full stop; None for any other.

    Raises Failed where it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            head = stream.read(_SEEN)
    except OSError as error:
        raise Failed(
            f"{path} cannot be read ({error.strerror}). Bring it back, or make it readable for this user."
        ) from error
    if not head:
        return "it is empty. Copy or fetch it again"
    if head.startswith(b"version https://git-lfs"):
        return (
            "it is a git-LFS pointer, the few lines that git keeps in place of a large file. Run `git lfs pull` in "
            "the repository it comes from"
        )
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith((b"<!doctype html", b"<html")):
        return (
            "it is a web page, as a download leaves that was answered with an error or a login. Download the file "
            "itself"
        )
    return None
