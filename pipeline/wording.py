"""Numbers as people read them: 246 MB, 2 m 03 s, 10,000."""

from elf.cache.store import Artifact

DASH = "–"
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_POWERS = ("k", "M", "G", "T", "P")
_LONG = ((365 * 86400.0, "years"), (86400.0, "days"))


def bytes_text(count: float | None) -> str:
    """Three significant digits with a decimal unit; a dash for unknown."""
    if count is None:
        return DASH
    value, unit = float(count), _UNITS[0]
    for unit in _UNITS:
        if value < 999.5 or unit == _UNITS[-1]:
            break
        value /= 1000
    digits = 0 if unit == "B" or value >= 99.5 else 1 if value >= 9.95 else 2
    return f"{value:.{digits}f} {unit}"


def count_text(count: int | None) -> str:
    """Digits in groups of three; a dash for unknown."""
    return DASH if count is None else f"{count:,}"


def amount_text(count: int | None) -> str:
    """Short enough for a table: ``99,999``, ``194 k``, ``8.82 M``, ``9.03 G``; a dash for unknown."""
    if count is None or count < 100_000:
        return count_text(count)
    value, power = count / 1000, 0
    while value >= 999.5 and power < len(_POWERS) - 1:
        value, power = value / 1000, power + 1
    unit = _POWERS[power]
    return f"{value:.{0 if value >= 99.5 else 1 if value >= 9.95 else 2}f} {unit}"


def seconds_text(seconds: float | None) -> str:
    """``0.4 s``, ``43 s``, ``2 m 03 s``, ``5 h 10 m``, ``12 days``; a dash for unknown."""
    if seconds is None:
        return DASH
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 2 * 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    for length, name in _LONG:
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {name}"
    return f"{seconds / 86400:.0f} days"


def about(text: str) -> str:
    """Marks an estimate."""
    return text if text == DASH else f"~{text}"


def about_bytes(count: float | None) -> str:
    """An estimated size: ``~246 MB``."""
    return about(bytes_text(count))


def about_seconds(seconds: float | None) -> str:
    """An estimated time, as coarse as it is uncertain: ``~52 s``, ``~5 min``, ``~36 h``, ``~12 days``."""
    if seconds is None:
        return DASH
    for limit, unit, name in ((99.5, 1.0, "s"), (5970, 60.0, "min"), (2 * 86400, 3600.0, "h")):
        if seconds < limit:
            return f"~{max(1, round(seconds / unit))} {name}"
    return about(seconds_text(seconds))


def rows_of(artifact: Artifact) -> int | None:
    """Rows, or texts, that an artifact says it holds, if its stage counts either."""
    for name in ("rows", "texts"):
        count = artifact.manifest.facts.get(name)
        if isinstance(count, int) and not isinstance(count, bool):
            return count
    return None


def size_of(artifact: Artifact) -> int:
    """Bytes of the payload."""
    return artifact.manifest.payload_bytes


def count_of(number: int, noun: str) -> str:
    """``1 step``, ``19 steps``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def age_text(seconds: float) -> str:
    """How long ago: ``now``, ``5 min``, ``3 h``, ``12 days``."""
    for length, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= (2 * length if name == "days" else length):
            return f"{seconds // length:,.0f} {name}"
    return "now"
