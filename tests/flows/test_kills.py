"""kill -9 in the middle of a stage: the same command goes on and ends with the bytes of a run nobody disturbed.

A moment is told by how many times the stage's files have been touched (``touches``), so that it falls inside the
stage however fast the machine is. A chain kills the same artifact again and again, each time where its last run
had not been yet.
"""

import json
import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from commands import call, contents, copy_store, half_made, keys, start, wait_for_the_end
from forked_elf import ForkedElf, said
from touches import Moment, read

from elf.cache.store import BUILDING

STEPS = ("tokenize", "pretrain", "encode", "train", "sample-sde", "evaluate-real")
OTHERS = {"tokenize": "tokenize-validation", "encode": "encode-validation", "sample-sde": "sample-ode"}
FIRST = 7
"""Touches before this one are those of the lease and the folder; then the stage begins."""
LONGEST_PAUSE = 0.3


@pytest.fixture(scope="module")
def forked() -> Iterator[ForkedElf]:
    server = ForkedElf()
    yield server
    server.close()


@pytest.fixture(scope="module")
def steps(whole: Path) -> dict[str, str]:
    return keys(whole)


@pytest.mark.parametrize("step", STEPS)
def test_three_kills(
    step: str, whole: Path, steps: dict[str, str], forked: ForkedElf, tmp_path: Path
) -> None:
    chain = Chain(step, whole, steps, tmp_path, seed=0, kills=3)
    check_chain(chain, forked)
    if step == "train":
        assert "Going on after step" in (chain.store / chain.key / "aux/log.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("step", STEPS)
def test_four_kills_of_twenty(
    step: str, seed: int, whole: Path, steps: dict[str, str], forked: ForkedElf, tmp_path: Path
) -> None:
    name = OTHERS.get(step, step) if seed % 2 else step
    check_chain(Chain(name, whole, steps, tmp_path, seed=seed, kills=4), forked)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", ["encode", "train"])
def test_two_kills_by_the_clock(step: str, whole: Path, steps: dict[str, str], tmp_path: Path) -> None:
    """Of processes that import for themselves, at moments that a clock chose."""
    chain = Chain(step, whole, steps, tmp_path, seed=6, kills=2)
    random_ = random.Random(step)
    for moment in chain.moments:
        late = replace(moment, at=FIRST, after=random_.uniform(0, chain.seconds), victim="top")
        process = start(chain.folder, *chain.arguments, **late.environment())
        _, err = process.communicate(timeout=280)
        assert process.returncode == -signal.SIGKILL, err
        assert not (chain.store / chain.key).exists()
    call(chain.folder, *chain.arguments)
    chain.check_end()


class Chain:
    """A copy of the undisturbed store without one artifact, and the seeded moments at which its builders die."""

    def __init__(
        self, step: str, whole: Path, steps: dict[str, str], folder: Path, *, seed: int, kills: int
    ) -> None:
        self.step, self.key, self.folder = step, steps[step], folder.resolve()
        self.store = copy_store(whole / "store", self.folder / "store", without=[self.key])
        self.wanted = contents(whole / "store")
        manifest = json.loads((whole / "store" / self.key / "manifest.json").read_text())
        self.seconds: float = manifest["provenance"]["seconds"]
        self.arguments = ("run", "tiny", "--only", step)
        touched = sum(f"{BUILDING}/{self.key}" in line for line in read(whole / "touches.txt"))
        random_ = random.Random(f"{seed} {step}")
        places = sorted(random_.randint(FIRST, touched - 1) for _ in range(kills))
        self.moments = [
            Moment(
                record=str(self.folder / f"touches-{number}.txt"),
                store=str(self.store),
                step=self.key,
                at=max(FIRST, place - before),
                after=random_.choice([0.0, random_.uniform(0, LONGEST_PAUSE)]),
                victim=random_.choice(["top", "top", "whoever"]),
            )
            for number, (before, place) in enumerate(zip([0, *places], places, strict=False))
        ]

    def check_end(self) -> None:
        """Everything is as it would have been, and nothing else is there."""
        wait_for_the_end(self.folder, 10)
        assert contents(self.store) == self.wanted
        assert not half_made(self.store)


def check_chain(chain: Chain, forked: ForkedElf) -> None:
    for moment in chain.moments:
        code = forked.run(chain.folder, *chain.arguments, **moment.environment())
        touched = read(Path(moment.record))
        where = f"{moment}, last touch {touched[-1:]}: {said(chain.folder)}"
        assert code == -signal.SIGKILL or (moment.victim == "whoever" and code == 1), where
        assert not (chain.store / chain.key).exists(), f"published before the kill: {where}"
    assert forked.run(chain.folder, *chain.arguments) == 0, said(chain.folder)
    chain.check_end()
