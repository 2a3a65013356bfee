"""What runs side by side cost and reused, as a page shows it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spending:
    """A row for each run, first what several share; ``words`` is what that comes to."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: str
