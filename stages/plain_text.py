"""Plain text as documents: the whole file, its paragraphs, or its lines."""

from collections.abc import Iterator
from itertools import chain, groupby
from pathlib import Path
from typing import Literal

Unit = Literal["file", "paragraph", "line"]
BOM = b"\xef\xbb\xbf"


def divide(path: Path, unit: Unit) -> Iterator[tuple[int, bytes]]:
    """Number of the first line, from 1, and bytes of each document of a file, in order, without the ends of its first
    and last line; what is blank is none. Of a file that is not divided the bytes are all there are.

    Lines that hold nothing but white space part paragraphs.
    """
    if unit == "file":
        yield 1, path.read_bytes().removeprefix(BOM)
        return
    with path.open("rb") as stream:
        lines = enumerate(chain((stream.readline().removeprefix(BOM),), stream), 1)
        if unit == "line":
            yield from ((number, line.strip(b"\r\n")) for number, line in lines if line.strip())
            return
        for blank, group in groupby(lines, key=lambda each: not each[1].strip()):
            if not blank:
                number, first = next(group)
                yield number, b"".join((first, *(line for _, line in group))).strip(b"\r\n")
