"""What the report shows of a trajectory: a few texts at every reading, and how they settle on average.

``Viewer.data`` is what the page's script draws from, as plain data: pieces once, readings as places in that list.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from elf.cache.manifest import JSON
from elf.stages.drawing import Drawing
from elf.stages.galleries import sides
from elf.stages.json_files import read_json
from elf.stages.plots import draw_distances, draw_settled
from elf.stages.scoretable import describe_settings
from elf.stages.texts import SAMPLES, SETTINGS, read_texts
from elf.stages.trajectory import TRAJECTORY, Followed, Trajectory, read_trajectory


@dataclass(frozen=True, slots=True)
class Shown:
    """A text at its end; of pairs the other sides."""

    label: str
    text: str
    sides: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Viewer:
    """One setting's texts; ``data`` holds their readings, ``notice`` what is wrong with them, if anything is."""

    name: str
    detail: str
    texts: tuple[Shown, ...]
    last: int
    """Number of the last reading, the end; the first is 0."""
    data: Mapping[str, JSON]
    drawings: tuple[Drawing, Drawing]
    notice: str


def make_viewers(settings: Mapping[str, Path]) -> list[Viewer]:
    """Of the settings, given by name with the folder of their samples, those whose texts were followed."""
    return [make_viewer(name, folder) for name, folder in settings.items() if (folder / TRAJECTORY).exists()]


def make_viewer(name: str, folder: Path) -> Viewer:
    """The viewer of one setting's ``trajectory.json``."""
    trajectory = read_trajectory(folder / TRAJECTORY)
    made = {text.id: text for text in read_texts(folder / SAMPLES) if text.seed == trajectory.seed}
    shown = tuple(
        Shown(
            label=f"seed {trajectory.seed} · {text.id}",
            text=_join(trajectory, text.ids_TN[-1]),
            sides=sides(made[text.id]),
        )
        for text in trajectory.texts
    )
    t = [reading.t for reading in trajectory.readings]
    drawings = (
        draw_settled(name, t, trajectory.settled),
        draw_distances(name, t, x=trajectory.x_distance, z=trajectory.z_distance),
    )
    settings = read_json(folder / SETTINGS)
    return Viewer(
        name=name,
        detail=describe_settings(settings),
        texts=shown,
        last=len(t) - 1,
        data=_data(trajectory),
        drawings=drawings,
        notice=_notice(trajectory.texts),
    )


def _data(trajectory: Trajectory) -> dict[str, JSON]:
    tokens = np.array(sorted(trajectory.pieces))
    return {
        "pieces": [trajectory.pieces[token] for token in tokens.tolist()],
        "times": [
            f"t\xa0{each.t:.2f}, {each.step} of {trajectory.steps} steps done" for each in trajectory.readings
        ],
        "texts": [
            {
                "readings": np.searchsorted(tokens, text.ids_TN).tolist(),
                "settledFrom": text.settled_from.tolist(),
                "said": [_say(text, place) for place in range(len(trajectory.readings))],
            }
            for text in trajectory.texts
        ],
    }


def _say(text: Followed, place: int) -> str:
    """Rounded down, so that nothing is said to be settled whole before it is."""
    settled, x, z = text.settled[place], text.x_distance[place], text.z_distance[place]
    return f"{math.floor(100 * settled + 1e-9)}\xa0% settled, x̂\xa0{x:.2f} and z\xa0{z:.2f} from the end"


def _join(trajectory: Trajectory, ids: np.ndarray) -> str:
    return "".join(trajectory.pieces[token] for token in ids.tolist()).lstrip()


def _notice(texts: Sequence[Followed]) -> str:
    """What tells these ends from the samples; empty where nothing does."""
    wrong: list[Any] = [(text.id, text.differing) for text in texts if text.differing]
    return "; ".join(
        f"text {number} ends with {count} {'token' if count == 1 else 'tokens'} other than its sample"
        for number, count in wrong
    )
