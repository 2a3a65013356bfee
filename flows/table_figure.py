"""The figure of a table: its rows on the plane of entropy and Gen-PPL, ours filled, published ones hollow."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from elf.cache.files import make_folder, write_atomic
from elf.flows.table_rows import Filled
from elf.pipeline.errors import Misconfigured
from elf.stages.published import PUBLISHED
from elf.stages.tables import PLANE, Table


def write_figure(table: Table, groups: Sequence[tuple[str, Sequence[Filled]]], file: str) -> Path:
    """A PNG. Raises Misconfigured for another kind of file, and for a table that has no such scores."""
    path = Path(file)
    if path.suffix.lower() != ".png":
        raise Misconfigured(f"--figure {file} names no PNG; give a name that ends in .png.")
    if table.scores != PLANE:
        raise Misconfigured(
            f"The table {table.name} has no Gen-PPL and entropy to draw; leave --figure out, or take `frontier`."
        )
    make_folder(path.parent)
    write_atomic(path, _draw(table, groups))
    return path


def _draw(table: Table, groups: Sequence[tuple[str, Sequence[Filled]]]) -> bytes:
    from elf.stages.frontier import draw_frontier
    from elf.stages.galleries import per_text
    from elf.stages.plane import Scored, make_plane
    from elf.stages.scoretable import make_tables

    published = PUBLISHED[table.task]
    rows: Mapping[str, Scored] = {
        scored.name: scored
        for title, some in groups
        for row in some
        if row.found is not None and row.found.metrics is not None
        for scored in [
            Scored(f"{title}, {row.label}", row.found.metrics, per_text(row.found.artifact), control=False)
        ]
    }
    for made in make_tables({name: each.metrics for name, each in rows.items()}, {}):
        plane = make_plane(made, rows, key=table.name, entropies={"": None}, published=published)
        if plane is not None:
            return plane.drawing.png
    # Nothing of ours is there yet.
    return draw_frontier([], [], judge=published.judge, key=table.name, published=published).png
