"""Following a few texts from noise to their end: what the network makes of them at each step, read as tokens.

They are sampled once more, in a batch of their own and from the same draws; every step's clean estimate x̂ goes through
the network's decode mode, as the end does.

Shapes: B texts, L positions of a row, N positions of a text, D width, T readings.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from elf.stages.model.sampler import Condition, Step
from elf.stages.model.speeding import uncompiled
from elf.stages.sample_settings import steps_read
from elf.stages.sampling import Sampling
from elf.stages.trajectory import Followed, Reading, Trajectory
from elf.stages.vocabulary import TextTokenizer, cut_at_end


@dataclass(frozen=True, slots=True, eq=False)
class _Glance:
    """One reading of all texts; tensors lie in main memory, so that a long text costs a GPU nothing."""

    step: int
    asked: float
    ids_BN: np.ndarray
    x_BND: Tensor
    z_BND: Tensor


class _Reader:
    """Called after every step; reads at the chosen ones. ``z_BLD`` is where the next step begins."""

    def __init__(self, sampling: Sampling, condition: Condition | None, start_BLD: Tensor) -> None:
        self._sampling, self._condition, self._z_BLD = sampling, condition, start_BLD
        self._wanted = set(steps_read(sampling.config.steps))
        self.glances: list[_Glance] = []

    def __call__(self, step: Step) -> None:
        if step.number in self._wanted:
            self.look(step.number, float(step.t_eval_B[0]), step.x_BLD, self._z_BLD)
        self._z_BLD = step.z_BLD

    def look(self, number: int, asked: float, x_BLD: Tensor, z_BLD: Tensor) -> None:
        """Read x̂ and keep what lies at the positions of the text."""
        ids_BN = self._sampling.read(x_BLD, self._condition)
        x_BND, z_BND = (self._cut(each) for each in (x_BLD, z_BLD))
        self.glances.append(_Glance(number, asked, ids_BN, x_BND, z_BND))

    def _cut(self, of_BLD: Tensor) -> Tensor:
        start_B, count = self._sampling.window(self._condition)
        if start_B is not None:
            place_BN = start_B[:, None] + torch.arange(count, device=start_B.device)
            of_BLD = of_BLD.gather(1, place_BN[:, :, None].expand(-1, -1, of_BLD.shape[2]))
        return of_BLD.cpu()


@torch.inference_mode()
def follow(
    sampling: Sampling, tokenizer: TextTokenizer, seed: int, made: Sequence[Sequence[int]]
) -> Trajectory:
    """The first texts of a seed, of which ``made`` are the ids that were sampled; at most draws.GRID_ROWS of them,
    which share one grid of times."""
    places, steps = range(len(made)), sampling.config.steps
    condition, draws = sampling.condition(places), sampling.draws(seed, places)
    reader = _Reader(sampling, condition, sampling.config.noise_scale * draws.start_BLD)
    with uncompiled():
        end_BLD = sampling.latents(seed, places, condition, reader)
        reader.look(steps, 1.0, end_BLD, end_BLD)
    times = draws.times_BS[0].tolist()
    end_id = sampling.vocabulary.end_id
    texts = tuple(_text(place, reader.glances, end_id, ids) for place, ids in enumerate(made))
    return Trajectory(
        seed=seed,
        steps=steps,
        readings=tuple(Reading(each.step, times[each.step], each.asked) for each in reader.glances),
        texts=texts,
        pieces=spell(tokenizer, np.unique(np.concatenate([text.ids_TN.ravel() for text in texts]))),
    )


def _text(row: int, glances: Sequence[_Glance], end_id: int, made: Sequence[int]) -> Followed:
    """What was read of one text, up to and including the end mark it ends with."""
    ids_TN = np.stack([each.ids_BN[row] for each in glances])
    own = cut_at_end(ids_TN[-1], end_id)
    kept = min(len(own) + 1, ids_TN.shape[1])
    end_ND = glances[-1].x_BND[row, :kept].double()
    x_distance, z_distance = (
        [float((of[row, :kept].double() - end_ND).square().mean().sqrt()) for of in each]
        for each in ([one.x_BND for one in glances], [one.z_BND for one in glances])
    )
    return Followed(
        id=row,
        ids_TN=ids_TN[:, :kept],
        x_distance=np.array(x_distance),
        z_distance=np.array(z_distance),
        differing=count_differing(own, made),
    )


def count_differing(ids: Sequence[int] | np.ndarray, others: Sequence[int] | np.ndarray) -> int:
    """Positions that differ, those that only one has among them."""
    shared = min(len(ids), len(others))
    unequal = int((np.asarray(ids)[:shared] != np.asarray(others)[:shared]).sum())
    return unequal + max(len(ids), len(others)) - shared


def spell(tokenizer: TextTokenizer, ids: np.ndarray) -> Mapping[int, str]:
    """What each token adds to a text that it does not begin: " word", "ing", "."; special ones by their names."""
    return {token: _spell(tokenizer, token) for token in ids.tolist()}


def _spell(tokenizer: TextTokenizer, token: int) -> str:
    alone, twice = tokenizer.decode([token]), tokenizer.decode([token, token])
    added = twice.removeprefix(alone) if twice.startswith(alone) else alone
    if added:
        return added
    return f" {tokenizer.backend.id_to_token(token)}" if token in tokenizer.specials.values() else " "
