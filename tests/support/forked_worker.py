"""Runs worker jobs in forked children of one process that has imported everything, and kills them where asked.

A line of JSON in, ``{"job": PATH, "kill": {…} | null}``; the child's exit code out (negative: the signal). Kill at
``{"step": k}`` (before step k changes anything), at ``{"file": n}`` (the n-th touch of a file below the job's
folder; Python's audit events) or send SIGTERM at ``{"term": k}`` (before step k changes anything, once its gradients
are there) or ``{"forward": n}`` (as the n-th loss is computed, from 1). What each step was made of (rows, sum of the
noise) goes to ``aux/fed.jsonl``.
"""

import json
import os
import signal
import sys
from itertools import count
from pathlib import Path
from typing import Any

import torch
from forking import Forking

from elf.cache.files import remove_strays
from elf.stages import distill, train, training, worker
from elf.stages.feeding import Fed
from elf.stages.model.draws import Draws
from elf.stages.model.objective import Batch, Loss
from elf.stages.model.optim import Muon
from elf.stages.model.token_draws import MaskDraws, TokenDraws
from elf.stages.objectives import Objective
from elf.stages.pieces import Measured
from elf.stages.team import Team
from elf.stages.training_state import TrainingState


class Server:
    """The test's side."""

    def __init__(self) -> None:
        self._forking = Forking(__file__)

    def run(self, job: Path, **kill: int) -> int:
        return self._forking.order(job=str(job), kill=kill)

    def close(self) -> None:
        self._forking.close()


def noise_of(drawn: Any) -> float:
    """The sum of what a step drew for its positions; of what draws nothing for them, what its dropout begins with."""
    if isinstance(drawn, Draws):
        return float(drawn.noise_BLD.double().sum())
    if isinstance(drawn, MaskDraws):
        return float(drawn.place_BL.double().sum() + drawn.share_B.double().sum())
    assert isinstance(drawn, TokenDraws)
    return float(drawn.dropout_seed)


def arm(folder: Path, kill: dict[str, int]) -> None:
    """Make this process die, or be told to, at the moment asked for."""
    if "file" in kill:
        left = [kill["file"]]

        def watch(event: str, arguments: tuple[Any, ...]) -> None:
            names = [
                os.fsdecode(each) for each in arguments[:2] if isinstance(each, str | bytes | os.PathLike)
            ]
            if any(name.startswith(str(folder)) and "/aux" not in name for name in names):
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
    advance = TrainingState.advance

    def interrupted(self: TrainingState, lr: float) -> None:
        if self.step == kill.get("step"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.step == kill.get("term"):
            os.kill(os.getpid(), signal.SIGTERM)
        advance(self, lr)

    TrainingState.advance = interrupted
    forward = Objective.forward
    forwards = count(1)

    def stopped(self: Objective, batch: Batch, draws: Draws) -> Loss:
        if next(forwards) == kill.get("forward"):
            os.kill(os.getpid(), signal.SIGTERM)
        return forward(self, batch, draws)

    Objective.forward = stopped
    gate = training.gate

    def noted(what: str, value: float, fed: Fed, measured: Measured, team: Team) -> None:
        if what == "loss":
            line = {
                "step": fed.step,
                "rows": fed.rows.tolist(),
                "noise": noise_of(fed.draws),
            }
            with (folder / "aux" / "fed.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
        gate(what, value, fed, measured, team)

    training.gate = noted


def serve() -> None:
    torch.set_num_threads(1)
    Muon([torch.nn.Parameter(torch.zeros(2, 2))], 0.1)  # imports a lot, which no child shall have to
    assert train.run is not distill.run, "imported before the first fork"
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            os.dup2(2, 1)
            path = Path(order["job"])
            remove_strays(path.parent.parent)  # as the store does when a half-built folder is taken up again
            arm(path.parent.parent, order["kill"])
            os._exit(worker.main(path))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
