"""The training run: stored latents in, checkpoints and losses out. One loop, the same on one process and on many.

Step k (from 0) trains on the rows and draws of (seed, k) at learning rate lr(k); a checkpoint ``step_<n>`` stands
after n steps. Everything a step does is a function of the weights and k, so that a run that was killed and goes
on from a checkpoint ends with the bytes of one that was not.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict
from itertools import chain
from pathlib import Path

import torch
from torch import nn

from elf.cache.manifest import JSON
from elf.pipeline.errors import Failed
from elf.pipeline.stage import StageContext
from elf.stages import checkpoint as checkpoints
from elf.stages.config import Optim, Train
from elf.stages.devices import choose_compile
from elf.stages.feeding import Fed, Recipe
from elf.stages.heldout import Heldout
from elf.stages.latents import LatentRows
from elf.stages.model.config import ObjectiveConfig
from elf.stages.model.draws import Draws
from elf.stages.model.network import Network, build, count_parameters
from elf.stages.model.objective import Batch, Loss, loss
from elf.stages.model.optim import clip
from elf.stages.model.schedule import learning_rate
from elf.stages.model.speeding import checkpoint_blocks, compile_blocks, few_rows
from elf.stages.pieces import Measured, Pieces
from elf.stages.saving import Saver
from elf.stages.sources import train_compute
from elf.stages.steps import Length, training_length
from elf.stages.stopping import GivenUp, Interrupted, StopWish
from elf.stages.tally import Tally
from elf.stages.team import Team
from elf.stages.trained import CARD
from elf.stages.training_inputs import describe, open_feed, open_splits
from elf.stages.training_metrics import METRICS, Journal, summarise
from elf.stages.training_state import TrainingState
from elf.stages.watching import open_watch

CHECKPOINTS = "checkpoints"


class Objective(nn.Module):
    """The loss as a module, so that its forward is what the processes of a run synchronise."""

    def __init__(
        self, network: Network, config: ObjectiveConfig, precision: str, *, few_shapes: bool = False
    ) -> None:
        super().__init__()
        self.network, self.config, self.precision, self.few_shapes = network, config, precision, few_shapes

    def forward(self, batch: Batch, draws: Draws) -> Loss:
        multiple = few_rows(len(batch.x_BLD)) if self.few_shapes else 1
        with torch.autocast(batch.x_BLD.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            return loss(self.network, batch, draws, self.config, row_multiple=multiple)


def run(section: Train, context: StageContext) -> Mapping[str, JSON]:
    """Fill ``checkpoints/``, ``metrics.jsonl`` and ``model.json``; the facts are counts, last losses and digests.

    Raises Failed where inputs do not fit, a number stops being finite or no checkpoint can be used; Interrupted
    after SIGTERM, once what was trained is saved: a process alone gives up the step in progress, several finish it.
    """
    with StopWish() as wish:
        team = Team(context.compute)

        # What is trained on, and the model that makes
        latents, validation = open_splits(section, context, team.device)
        length = training_length(section, latents.rows)
        card = describe(section, latents)
        places = team.places(section.batch)
        recipe = Recipe(latents, section.seed, section.batch, places, card.objective, team.device)
        heldout = None
        if section.heldout is not None and validation is not None:
            heldout = Heldout(recipe, validation, section.heldout, team, at_once=context.compute.batch)

        # What steps change
        network = build(card.model, torch.Generator().manual_seed(section.seed)).to(team.device)
        compiled = speed_up(network, context, team.device)
        state = TrainingState(network, section.optim, team)
        objective = Objective(network, card.objective, section.precision, few_shapes=compiled)
        wrapped = team.wrap(objective, all_used=card.objective.self_condition > 0)
        pieces = Pieces(places, groups=section.accumulate, at_once=context.compute.batch, team=team)

        # Where to begin
        folder = context.out / CHECKPOINTS
        kept = resume(state, folder, team, context)
        if team.writes:
            card.write(context.out / CARD)
        steps = range(state.step, length.total)
        saver = Saver(folder, keep=section.keep, step=state.step)
        watching = open_watch(
            section,
            context,
            team,
            state=state,
            card=card,
            rows=latents if validation is None else validation,
            kept=kept,
            total=length.total,
        )
        with watching as watch, open_feed(recipe, steps, context, team) as feed, saver:
            if heldout is not None and state.step == 0:
                watch.write(measure(heldout, objective, state))
            began = time.perf_counter()
            for fed in feed:
                arrived = time.perf_counter()

                # The loss of the global batch and its gradients
                network.train()
                state.optimizer.zero_grad(set_to_none=True)
                try:
                    with wish.giving_up(alone=team.size == 1):
                        mine = pieces.add_gradients(wrapped, fed, latents.normalise, card.objective.padding)
                except GivenUp:
                    raise stop(state, saver, watch.journal, team, length) from None
                *sums, stops = team.total([mine.levels_4K, float(wish.stop)])
                tally = Tally.of(sums)
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
                line |= {**count(tally), **tally.sums(), **tally.positions()}
                watch.step(line, seconds=stepped - began)
                if heldout is not None and (done or heldout.due(state.step)):
                    watch.write(measure(heldout, objective, state))
                watch.look(state, done=done)

                # What is kept of it
                stopping = stops > 0 and not done
                if done or stopping or state.step % section.save_every == 0:
                    save(state, saver, watch.journal, team)
                ended = time.perf_counter()
                watch.time(
                    state.step, seconds=stepped - began, waited=arrived - began, beside=ended - stepped
                )
                began = ended
                if stopping:
                    raise stop(state, saver, watch.journal, team, length)

        team.meet()
        facts = conclude(section, context, state, latents) if team.writes else {}
        team.leave()
        return facts


def speed_up(network: Network, context: StageContext, device: torch.device) -> bool:
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
        "those rows' latents (elf cache verify), or lower train.optim.lr, or train in float32."
    )


def count(tally: Tally) -> dict[str, int]:
    """Positions of each branch that count."""
    return {"decode_positions": sum(tally.decoded), "denoise_positions": sum(tally.denoised)}


def measure(heldout: Heldout, objective: Objective, state: TrainingState) -> dict[str, JSON]:
    """The held-out line after a step: ``heldout_…`` with the averaged weights, ``heldout_raw_…`` with the others."""
    network = state.network.eval()
    raw = heldout.measure(objective)
    with state.ema.applied(network):
        averaged = heldout.measure(objective)
    network.train()
    return {
        "step": state.step,
        **{f"heldout_{name}": value for name, value in (averaged.means() | averaged.sums()).items()},
        **{f"heldout_raw_{name}": value for name, value in (raw.means() | raw.sums()).items()},
        **{f"heldout_{name}": value for name, value in averaged.positions().items()},
    }


def resume(state: TrainingState, folder: Path, team: Team, context: StageContext) -> int:
    """Load the newest usable checkpoint on every process; how many bytes of metrics belong to it."""
    found = checkpoints.newest(folder, context.progress.note) if team.writes else None
    step = team.share(None if found is None else found.step)
    if step is None:
        return 0
    found = found or checkpoints.read(folder / f"step_{step}")
    state.load(found, source=folder / f"step_{step}")
    context.progress.note(f"Going on after step {step}.")
    kept = found.state["metrics_bytes"]
    assert isinstance(kept, int)
    return kept


def save(state: TrainingState, saver: Saver, journal: Journal, team: Team) -> None:
    """Have a checkpoint written, once the losses up to it are on the disk."""
    if team.writes:
        saver.save(state.checkpoint({"metrics_bytes": journal.sync()}))


def stop(state: TrainingState, saver: Saver, journal: Journal, team: Team, length: Length) -> Interrupted:
    """Have what was trained on the disk; what to raise then."""
    if state.step == 0:
        return Interrupted("Interrupted in the first step, before there was anything to save.")
    if saver.step != state.step:
        save(state, saver, journal, team)
    saver.wait()
    return Interrupted(f"Interrupted, and saved after step {state.step} of {length.total}.")


def conclude(
    section: Train, context: StageContext, state: TrainingState, latents: LatentRows
) -> dict[str, JSON]:
    """Leave only the last checkpoint; the facts of the run."""
    rows, length = latents.rows, latents.length
    folder = context.out / CHECKPOINTS
    checkpoints.keep_only(folder, state.step)
    digests = checkpoints.prove(folder / f"step_{state.step}")
    return {
        "steps": state.step,
        "rows": rows,
        "epochs": state.step * section.batch / rows,
        "tokens": state.step * section.batch * length,
        "scale": asdict(latents.scale),
        "parameters": count_parameters(state.network),
        "weights": {"raw": digests["model.safetensors"], "ema": digests["ema.safetensors"]},
        **summarise(context.out / METRICS),
    }
