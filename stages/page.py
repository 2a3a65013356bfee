"""A page from its template and parts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from elf.cache.files import write_atomic
from elf.pipeline.wording import seconds_text
from elf.stages.drawing import Drawing

NAME = "report.html"


@dataclass(frozen=True, slots=True)
class Page:
    """A page, which needs nothing beside it, and its figures one by one."""

    html: str
    drawings: tuple[Drawing, ...]

    def write(self, folder: Path) -> Path:
        """The page as `report.html`, and each figure as a PNG; returns where the page lies."""
        for drawing in self.drawings:
            write_atomic(folder / f"{drawing.name}.png", drawing.png)
        write_atomic(folder / NAME, self.html)
        return folder / NAME


def render(template: str, **parts: Any) -> str:
    """What a template makes of its parts; one that it does not get is an error."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"seconds": seconds_text, "count": say_count}
    return environment.get_template(template).render(parts)


def say_count(number: Any) -> str:
    """A whole number short enough for a heading: `9,999`, `12.5 k`, `8.1 M`, `45.2 G`."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= limit:
            return f"{number / (1e3 if unit == 'k' else limit):.1f} {unit}"
    return f"{number:,.0f}"
