"""The training loop: rows in, checkpoints and losses out. The same for whatever is learnt, on one process and on many.

Step k (from 0) trains on the rows and draws of (seed, k) at learning rate lr(k); a checkpoint ``step_<n>`` stands
after n steps. Everything a step does is a function of the weights and k, so that a run that was killed and goes
on from a checkpoint ends with the bytes of one that was not.
"""

import math
import time
from itertools import chain
from pathlib import Path

import torch

from elf.cache.manifest import JSON
from elf.pipeline.errors import Failed
from elf.pipeline.stage import StageContext
from elf.stages import checkpoint as checkpoints
from elf.stages.devices import choose_compile
from elf.stages.feeding import Fed
from elf.stages.heldout import Heldout
from elf.stages.model.network import Network, count_parameters
from elf.stages.model.optim import clip
from elf.stages.model.schedule import learning_rate
from elf.stages.model.speeding import checkpoint_blocks, compile_blocks
from elf.stages.model.token_network import TokenNetwork
from elf.stages.objectives import Goal
from elf.stages.pieces import Measured, Pieces
from elf.stages.saving import Saver
from elf.stages.sources import train_compute
from elf.stages.steps import Length
from elf.stages.stopping import GivenUp, Interrupted, StopWish
from elf.stages.tally import Tally
from elf.stages.task import Task
from elf.stages.team import Team
from elf.stages.train_settings import Optim, Training
from elf.stages.trained import CARD
from elf.stages.training_inputs import open_feed
from elf.stages.training_metrics import BYTES, METRICS, Journal, fault_of, summarise
from elf.stages.training_state import TrainingState
from elf.stages.watching import open_watch

CHECKPOINTS = "checkpoints"


def learn(
    task: Task, section: Training, context: StageContext, team: Team, wish: StopWish
) -> dict[str, JSON]:
    """Fill ``checkpoints/``, ``metrics.jsonl`` and ``model.json``; the facts are counts, last losses and digests, on
    the process that writes.

    Raises Failed where a number stops being finite or no checkpoint can be used; Interrupted after SIGTERM, once
    what was trained is saved: a process alone gives up the step in progress, several finish it.
    """
    # What steps change
    network, objective, recipe, length = task.network, task.objective, task.recipe, task.length
    state = TrainingState(network, section.optim, team)
    wrapped = team.wrap(objective, all_used=objective.all_used)
    pieces = Pieces(recipe.places, groups=section.accumulate, at_once=context.compute.batch, team=team)

    # Where to begin
    folder = context.out / CHECKPOINTS
    kept = resume(state, folder, team, context)
    if team.writes:
        task.card.write(context.out / CARD)
    steps = range(state.step, length.total)
    saver = Saver(folder, keep=section.keep, step=state.step)
    watching = open_watch(task, section, context, team, state=state, kept=kept)
    with watching as watch, open_feed(recipe, steps, context, team) as feed, saver:
        if task.heldout is not None and state.step == 0:
            watch.write(measure(task.heldout, objective, state))
        began = time.perf_counter()
        for fed in feed:
            arrived = time.perf_counter()

            # The loss of the global batch and its gradients
            network.train()
            state.optimizer.zero_grad(set_to_none=True)
            try:
                with wish.giving_up(alone=team.size == 1):
                    mine = pieces.add_gradients(
                        wrapped, fed, recipe.latents.normalise, objective.units(fed.raw)
                    )
            except GivenUp:
                raise stop(state, saver, watch.journal, team, length) from None
            beside = objective.beside(fed.draws)
            *sums, stops = team.total([mine.levels_4K, *map(float, beside.values()), float(wish.stop)])
            tally, counted = objective.tally.of(sums), sums[len(sums) - len(beside) :]
            gate("loss", tally.loss, fed, mine, team)
            norm = float(clip(network.parameters(), section.optim.clip))
            gate("gradient norm", norm, fed, mine, team)

            # The step
            lr = rate(section.optim, length, fed.step)
            state.advance(lr)
            done = state.step == length.total

            # What is said of it
            stepped = time.perf_counter()
            line = {"step": state.step, **tally.means(), "lr": lr, "grad_norm": norm}
            line |= {**tally.counts(objective.unit), **tally.sums(), **tally.counts_by_level(objective.unit)}
            line |= {name: int(number) for name, number in zip(beside, counted, strict=True)}
            watch.step(line, seconds=stepped - began)
            if task.heldout is not None and (done or task.heldout.due(state.step)):
                watch.write(measure(task.heldout, objective, state))
            watch.look(state, done=done)

            # What is kept of it
            stopping = stops > 0 and not done
            if done or stopping or state.step % section.save_every == 0:
                save(state, saver, watch.journal, team, done=done)
            ended = time.perf_counter()
            watch.time(state.step, seconds=stepped - began, waited=arrived - began, beside=ended - stepped)
            began = ended
            if stopping:
                raise stop(state, saver, watch.journal, team, length)

    team.meet()
    return conclude(task, section, context, state) if team.writes else {}


def speed_up(network: Network | TokenNetwork, context: StageContext, device: torch.device) -> bool:
    """Have the network run as ``compute.train`` says; whether it is compiled."""
    compute = train_compute(context.compute)
    if compute.checkpointing:
        checkpoint_blocks(network)
    compiled = choose_compile(compute.compile, device.type, context.progress)
    if compiled:
        compile_blocks(network)
    return compiled


def rate(optim: Optim, length: Length, step: int) -> float:
    """Learning rate of optimiser step ``step``, from 0."""
    total = length.total if optim.schedule == "cosine" else None
    return learning_rate(step, peak=optim.lr, warmup=length.warmup, total=total, minimum=optim.min_lr)


def gate(what: str, value: float, fed: Fed, measured: Measured, team: Team) -> None:
    """Refuse a step before it changes anything, on all processes alike and in the same words: ``value`` is that of the
    global batch."""
    if math.isfinite(value):
        return
    places = team.places(len(fed.rows))
    mine = fed.rows[places.start : places.stop]
    guilty = list(chain(*team.gather(mine[~torch.isfinite(measured.error_B).cpu().numpy()].tolist())))
    listed = guilty or fed.rows.tolist()
    rows = ", ".join(map(str, listed[:20])) + (f" and {len(listed) - 20} more" if len(listed) > 20 else "")
    raise Failed(
        f"The {what} of step {fed.step + 1} is {value}; the step was refused and changed nothing. "
        f"{'It comes from' if guilty else 'It was made of'} rows {rows}. The last checkpoint is finite: look at "
        "those rows' latents (elf cache verify), or lower the learning rate (optim.lr), or train in float32."
    )


def measure(heldout: Heldout, objective: Goal, state: TrainingState) -> dict[str, JSON]:
    """The held-out line after a step: ``heldout_…`` with the averaged weights, ``heldout_raw_…`` with the others."""
    network = state.network.eval()
    raw = heldout.measure(objective)
    with state.ema.applied(network):
        averaged = heldout.measure(objective)
    network.train()
    return {
        "step": state.step,
        **{f"heldout_{name}": value for name, value in _held(averaged).items()},
        **{f"heldout_raw_{name}": value for name, value in _held(raw).items()},
        **{f"heldout_{name}": value for name, value in averaged.counts_by_level(objective.unit).items()},
    }


def _held(tally: Tally) -> dict[str, JSON]:
    return {**tally.means(), **tally.besides(), **tally.sums()}


def resume(state: TrainingState, folder: Path, team: Team, context: StageContext) -> int:
    """Load the newest usable checkpoint on every process; how many bytes of metrics belong to it."""
    out = context.out
    found = None
    if team.writes:
        found = checkpoints.newest(folder, context.progress.note, lambda state: fault_of(out, state))
    step = team.share(None if found is None else found.step)
    if step is None:
        return 0
    found = found or checkpoints.read(folder / f"step_{step}")
    state.load(found, source=folder / f"step_{step}")
    context.progress.note(f"Going on after step {step}.")
    kept = found.state[BYTES]
    assert isinstance(kept, int)
    return kept


def save(state: TrainingState, saver: Saver, journal: Journal, team: Team, *, done: bool = False) -> None:
    """Have a checkpoint written, once the losses up to it are on the disk. That of a run that is ``done`` lies in an
    artifact, whose manifest digests the losses."""
    if team.writes:
        told = journal.sync()
        saver.save(state.checkpoint({BYTES: told[BYTES]} if done else told))


def stop(state: TrainingState, saver: Saver, journal: Journal, team: Team, length: Length) -> Interrupted:
    """Have what was trained on the disk; what to raise then."""
    if state.step == 0:
        return Interrupted("Interrupted in the first step, before there was anything to save.")
    if saver.step != state.step:
        save(state, saver, journal, team)
    saver.wait()
    return Interrupted(f"Interrupted, and saved after step {state.step} of {length.total}.")


def conclude(task: Task, section: Training, context: StageContext, state: TrainingState) -> dict[str, JSON]:
    """Leave only the last checkpoint; the facts of the run."""
    latents = task.recipe.latents
    folder = context.out / CHECKPOINTS
    checkpoints.keep_only(folder, state.step)
    digests = checkpoints.prove(folder / f"step_{state.step}")
    return {
        "steps": state.step,
        "rows": latents.rows,
        "epochs": state.step * section.batch / latents.rows,
        "tokens": state.step * section.batch * latents.length,
        **task.card.facts(),
        "parameters": count_parameters(state.network),
        "weights": {"raw": digests["model.safetensors"], "ema": digests["ema.safetensors"]},
        **summarise(context.out / METRICS),
    }
