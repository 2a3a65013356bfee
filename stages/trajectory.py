"""`trajectory.json`: a few texts as they were at the steps of their sampling, beside the `samples.jsonl` they end as.

A view only: sampling stays continuous from noise to the end. A reading is taken where a step begins, at time t of the
grid: the network's clean estimate x̂ (guided, as the step uses it) is decoded to tokens just as the end is. The last
reading is the end itself, t = 1.

    seed, steps  the seed, and the steps of the sampler
    readings     of each: "step" (0 … steps), "t", "asked", the time the network was told (below t in an SDE step, which
                 goes back first), and means over the texts of "settled", "x_distance" and "z_distance"
    texts        of each: its "id" in samples.jsonl; per reading "ids" (token by position, up to and including the end
                 mark of the final text), "settled", "x_distance", "z_distance"; "differing" (see below)
    pieces       what each of the ids adds to a text, "71": " a"

"settled" is the share of these positions whose token already is the final one and stays so at all later readings.
Distances are root mean squares over these positions and all channels, in units of the normalised latents: from x̂, and
from the state z where the step begins, to the final state. Texts are followed in a batch of their own, whose rounding
can tip a token that was nearly a tie: "differing" counts ids that are not those of samples.jsonl.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from elf.cache.files import write_atomic
from elf.pipeline.errors import Failed

TRAJECTORY = "trajectory.json"
DIGITS = 6
_AGAIN = "Make it again: run its step (`elf why` lists them) with --force."


@dataclass(frozen=True, slots=True)
class Reading:
    """Where the texts were read: `step` steps were done, the state stood at `t`, the network was asked at `asked`."""

    step: int
    t: float
    asked: float


@dataclass(frozen=True, slots=True, eq=False)
class Followed:
    """One text. Shapes: T readings, the last being the end; N positions."""

    id: int
    ids_TN: np.ndarray
    x_distance: np.ndarray
    z_distance: np.ndarray
    differing: int

    @property
    def settled_from(self) -> np.ndarray:
        """The reading from which on each position holds its final token."""
        return first_settled(self.ids_TN)

    @property
    def settled(self) -> np.ndarray:
        """Share of positions that are settled at each reading; 1 at the last."""
        return (self.settled_from[None] <= np.arange(len(self.ids_TN))[:, None]).mean(axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """The first texts of a seed, read at the same times."""

    seed: int
    steps: int
    readings: tuple[Reading, ...]
    texts: tuple[Followed, ...]
    pieces: Mapping[int, str]

    @property
    def settled(self) -> np.ndarray:
        """Mean over the texts."""
        return np.mean([text.settled for text in self.texts], axis=0)

    @property
    def x_distance(self) -> np.ndarray:
        """Mean over the texts."""
        return np.mean([text.x_distance for text in self.texts], axis=0)

    @property
    def z_distance(self) -> np.ndarray:
        """Mean over the texts."""
        return np.mean([text.z_distance for text in self.texts], axis=0)


def first_settled(ids_TN: np.ndarray) -> np.ndarray:
    """(N,) index of the first reading from which on a position holds the token of the last."""
    final_TN = np.logical_and.accumulate((ids_TN == ids_TN[-1])[::-1])
    return len(ids_TN) - final_TN.sum(axis=0)


def write_trajectory(path: Path, trajectory: Trajectory) -> None:
    """Write the file whole or not at all."""
    means = _series(trajectory)
    plain = {
        "seed": trajectory.seed,
        "steps": trajectory.steps,
        "readings": [
            {"step": each.step, "t": _short(each.t), "asked": _short(each.asked)}
            | {name: values[place] for name, values in means.items()}
            for place, each in enumerate(trajectory.readings)
        ],
        "texts": [
            {"id": text.id, "ids": text.ids_TN.tolist(), "differing": text.differing} | _series(text)
            for text in trajectory.texts
        ],
        "pieces": {str(token): trajectory.pieces[token] for token in sorted(trajectory.pieces)},
    }
    write_atomic(path, json.dumps(plain, allow_nan=False) + "\n")


def read_trajectory(path: Path) -> Trajectory:
    """What was written. Raises Failed for a file that holds something else."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        trajectory = Trajectory(
            seed=int(plain["seed"]),
            steps=int(plain["steps"]),
            readings=tuple(
                Reading(int(each["step"]), float(each["t"]), float(each["asked"]))
                for each in plain["readings"]
            ),
            texts=tuple(_followed(text) for text in plain["texts"]),
            pieces={int(token): str(piece) for token, piece in plain["pieces"].items()},
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise Failed(f"{path} is no trajectory of this version: {error!r:.200}. {_AGAIN}") from error
    shapes = {
        len(values) for text in trajectory.texts for values in (text.ids_TN, text.x_distance, text.z_distance)
    }
    known = all(np.isin(text.ids_TN, list(trajectory.pieces)).all() for text in trajectory.texts)
    if not trajectory.texts or shapes != {len(trajectory.readings)} or not known:
        raise Failed(
            f"{path} contradicts itself: its texts, readings and pieces do not go together. {_AGAIN}"
        )
    return trajectory


def _followed(text: Mapping[str, Any]) -> Followed:
    ids_TN = np.array(text["ids"], np.int64)
    if ids_TN.ndim != 2 or not ids_TN.size:
        raise ValueError(f"the ids of text {text['id']} are no table of readings by positions")
    distances = (np.array(text[name], np.float64) for name in ("x_distance", "z_distance"))
    return Followed(int(text["id"]), ids_TN, *distances, differing=int(text["differing"]))


def _series(of: Followed | Trajectory) -> dict[str, list[float]]:
    named = {"settled": of.settled, "x_distance": of.x_distance, "z_distance": of.z_distance}
    return {name: [_short(value) for value in values.tolist()] for name, values in named.items()}


def _short(value: float) -> float:
    return round(value, DIGITS)
