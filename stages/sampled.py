"""The texts of a sampling run while it is made: its batches, their records, and that every text is there once.

Batches are cut from the whole list of texts by their size alone. Neither the number of processes that share them nor
the place where an interrupted run goes on moves their bounds, so that a text is computed beside the same others every
time; another size changes that, and with it rounding at most.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from elf.cache.files import write_atomic
from elf.pipeline.errors import Failed


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts ``places`` of a seed, sampled together."""

    seed: int
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """What a batch gave: tokenizer ids of each of its texts, in order."""

    seed: int
    places: tuple[int, ...]
    ids: tuple[tuple[int, ...], ...]


class Made:
    """Ids of the texts sampled so far. Raises Failed when a text is given a second time."""

    def __init__(self, folder: Path) -> None:
        """``folder`` holds the records, and is named where they are at fault."""
        self._folder = folder
        self._ids: dict[tuple[int, int], tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, part: Part) -> None:
        """Take in what a batch gave."""
        for place, ids in zip(part.places, part.ids, strict=True):
            if (part.seed, place) in self._ids:
                raise self._refusal(f"Text {place} of seed {part.seed} was sampled twice")
            self._ids[part.seed, place] = ids

    def left(self, batches: Sequence[Batch]) -> list[Batch]:
        """What of these batches is not there yet."""
        rest = [
            Batch(each.seed, tuple(place for place in each.places if (each.seed, place) not in self._ids))
            for each in batches
        ]
        return [each for each in rest if each.places]

    def all_of(self, batches: Sequence[Batch]) -> list[tuple[int, int, tuple[int, ...]]]:
        """(seed, place, ids) of exactly the texts of these batches, in order. Raises Failed for one too few or many."""
        wanted = [(each.seed, place) for each in batches for place in each.places]
        if absent := [item for item in wanted if item not in self._ids]:
            raise self._refusal(f"Text {absent[0][1]} of seed {absent[0][0]} was not sampled")
        if foreign := sorted(self._ids.keys() - set(wanted)):
            raise self._refusal(
                f"Text {foreign[0][1]} of seed {foreign[0][0]} was sampled, and nobody wants it"
            )
        return [(*item, self._ids[item]) for item in wanted]

    def _refusal(self, what: str) -> Failed:
        return Failed(
            f"{what}: the records in {self._folder} are not those of this run alone. Delete that folder and run the "
            "same command again."
        )


def cut(seeds: Sequence[int], count: int, size: int) -> list[Batch]:
    """The batches of ``count`` texts of each seed, ``size`` at a time, in order."""
    return [
        Batch(seed, tuple(range(first, min(first + size, count))))
        for seed in seeds
        for first in range(0, count, size)
    ]


def write_part(folder: Path, part: Part) -> None:
    """Record what a batch gave, whole or not at all."""
    path = folder / f"{part.seed}-{part.places[0]}-{len(part.places)}.json"
    write_atomic(path, json.dumps(asdict(part)))


def read_parts(folder: Path) -> Iterator[Part]:
    """What an interrupted run recorded, whatever its batches were. Raises Failed naming a record that is none."""
    for path in sorted(folder.glob("*.json")):
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            part = Part(plain["seed"], tuple(plain["places"]), tuple(map(tuple, plain["ids"])))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Failed(
                f"{path} is no record of sampled texts: {error}. Delete it and run again."
            ) from error
        if len(part.places) != len(part.ids):
            raise Failed(
                f"{path} holds {len(part.ids)} texts for {len(part.places)} places. Delete it and run again."
            )
        yield part
