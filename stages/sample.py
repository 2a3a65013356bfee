"""Stage sample: a trained model → `samples.jsonl` and the `settings.json` that made it.

Text i of seed s is a function of (weights, settings, s, i): all of its random numbers are drawn for (s, i) alone, so
batch size and the place where an interrupted run goes on have no part in it. Rows of pairs give one text each,
conditioned on the stored states of their source; text otherwise starts from noise alone.

Resumes batch by batch: the ids sampled so far lie under `parts/` until the end.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from elf.cache.files import make_folder, remove_at_once, write_atomic
from elf.cache.manifest import JSON
from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.stage import Compute, StageContext
from elf.stages.compute import SampleCompute
from elf.stages.config import Sample
from elf.stages.devices import choose_compile, choose_device
from elf.stages.latents import LatentRows, open_latents
from elf.stages.memory import keep_freed_memory, set_threads
from elf.stages.model.config import SamplerConfig
from elf.stages.model.decoding import decode
from elf.stages.model.draws import draw_samples
from elf.stages.model.sampler import Condition, sample_latents
from elf.stages.model.speeding import compile_blocks
from elf.stages.rows import TokenRows
from elf.stages.texts import SAMPLES, SETTINGS, Text, write_texts
from elf.stages.trained import Trained, load_trained
from elf.stages.vocabulary import Vocabulary, cut_at_end, decode_texts, load_tokenizer

POSITIONS = {"cpu": 4096, "cuda": 65536}
"""Positions of one batch where `compute.sample.batch` names no number of rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Sampling:
    """A model, how it is sampled, and the sources it is conditioned on (None for text)."""

    trained: Trained
    config: SamplerConfig
    vocabulary: Vocabulary
    sources: LatentRows | None
    device: str

    @torch.inference_mode()
    def ids(self, seed: int, places: Sequence[int], condition: Condition | None = None) -> list[np.ndarray]:
        """Tokenizer ids (up to the first end mark) of the texts `places` of a seed; for pairs these are rows, read
        where no `condition` was read before."""
        model = self.trained.model
        draws = draw_samples(
            seed, places, length=model.length, width=model.width, config=self.config, device=self.device
        )
        condition = self.condition(places) if condition is None else condition
        start_B, count = None, None
        if condition is not None and self.vocabulary.max_source is not None:
            start_B, count = condition.length_B, model.length - self.vocabulary.max_source
        z_BLD = sample_latents(self.trained.network, draws, self.config, condition=condition)
        if not bool(torch.isfinite(z_BLD).all()):
            raise Failed(
                f"Sampling texts {places[0]} to {places[-1]} of seed {seed} gave numbers that are not finite; the "
                "weights are damaged or the setting explodes. Try a smaller guidance, or train again."
            )
        head_BN = decode(self.trained.network, z_BLD, self.config, start_B=start_B, count=count)
        rows = self.vocabulary.to_tokenizer(self._known(head_BN.cpu().numpy()))
        return [cut_at_end(row, self.vocabulary.end_id) for row in rows]

    def _known(self, head_BN: np.ndarray) -> np.ndarray:
        """Head entries beyond the tokenizer (imported heads are padded) read as the unknown token."""
        beyond, unknown = head_BN >= self.vocabulary.size, self.vocabulary.unknown_id
        if not beyond.any():
            return head_BN
        if unknown is None:
            raise Failed(
                f"The model gave id {int(head_BN[beyond][0])}, beyond the tokenizer's {self.vocabulary.size:,}, "
                "and that has no unknown token to stand for it."
            )
        return np.where(beyond, unknown, head_BN)

    def condition(self, places: Sequence[int]) -> Condition | None:
        """What the texts of these rows are conditioned on; None for text."""
        if self.sources is None:
            return None
        kept = torch.zeros(len(places), dtype=torch.bool)
        raw = self.sources.read(np.array(places), kept, self.sources.make_buffer(len(places)))
        batch = self.sources.normalise(raw, torch.device(self.device))
        return Condition(batch.x_BLD, batch.condition_length_B.to(self.device))


def run(section: Sample, context: StageContext) -> Mapping[str, JSON]:
    """Sample every seed of one setting."""
    keep_freed_memory()
    set_threads(context.compute.threads)
    sampling, rows = prepare(section, context)
    count = section.count if sampling.sources is None else rows.rows
    batch = context.compute.batch or max(1, POSITIONS[sampling.device] // sampling.trained.model.length)
    parts = make_folder(context.out / "parts")
    made = _recorded(parts)
    wanted = [(seed, place) for seed in section.seeds for place in range(count)]
    missing = [item for item in wanted if item not in made]
    done = len(wanted) - len(missing)
    with context.progress.bar("sample", len(wanted), unit="texts", done=done) as bar:
        for seed, places in _batches(missing, batch):
            ids = sampling.ids(seed, places)
            plain = {"seed": seed, "places": places, "ids": [row.tolist() for row in ids]}
            write_atomic(parts / f"{seed}-{places[0]}-{len(places)}.json", json.dumps(plain))
            made |= {(seed, place): row.tolist() for place, row in zip(places, ids, strict=True)}
            bar.advance(len(places))
    texts = read_out([(*item, made[item]) for item in wanted], rows, pairs=sampling.sources is not None)
    write_texts(context.out / SAMPLES, texts)
    settings = describe(section, sampling, context)
    write_atomic(context.out / SETTINGS, json.dumps(settings, indent=1, sort_keys=True) + "\n")
    remove_at_once(parts)
    return {
        "texts": len(texts),
        "seeds": list(section.seeds),
        "empty": sum(text.empty for text in texts),
        "tokens": sum(len(text.ids or ()) for text in texts),
        "weights": sampling.trained.digest,
    }


def sample_compute(compute: Compute) -> SampleCompute:
    """Sampling's runtime settings; its own stay at their defaults where only the common ones are given."""
    return compute if isinstance(compute, SampleCompute) else SampleCompute(**compute.model_dump())


def prepare(section: Sample, context: StageContext) -> tuple[Sampling, TokenRows]:
    """The model, checked against the tokens and states it is to be used with; refuses what does not fit."""
    if len(set(section.seeds)) != len(section.seeds) or not section.seeds:
        raise Misconfigured(
            f"sample.seeds is {list(section.seeds)}; give one or more seeds, each of them once."
        )
    device = choose_device(context.compute.device)
    tokens, latents = context.inputs["tokens"], context.inputs.get("latents")
    rows = TokenRows.open(tokens.path)
    trained = load_trained(context.inputs["model"].path, section.weights, device)
    trained.card.check_fits(vocabulary=rows.vocabulary)
    if choose_compile(sample_compute(context.compute).compile, device, context.progress):
        compile_blocks(trained.network)
    if rows.vocabulary.max_source is not None and latents is None:
        raise Failed(
            "The rows are pairs, but no encoded sources were given to condition on; the plan lacks the input 'latents'."
        )
    sources = None
    if latents is not None:
        trained.card.check_fits(encoder=latents.manifest.facts["encoder"])
        sources = open_latents(tokens, latents, trained.card.scale, drops=False)
        if sources.width != trained.model.width:
            raise Failed(
                f"The model was trained with width {trained.model.width}, but is given states of width "
                f"{sources.width}. Use the states of the encoder it was trained with."
            )
    return Sampling(trained, sampler_config(section, trained), rows.vocabulary, sources, device), rows


def sampler_config(section: Sample, trained: Trained) -> SamplerConfig:
    """The sampler of a section for this model: its noise, times and self-conditioning are the objective's."""
    objective = trained.objective
    return SamplerConfig(
        method=section.method,
        steps=section.steps,
        grid=section.grid,
        guidance=section.guidance,
        gamma=section.gamma if section.method == "sde" else 0.0,
        input_guidance=section.input_guidance,
        sde_form=section.sde_form,
        time_mean=objective.time_mean,
        time_std=objective.time_std,
        noise_scale=objective.noise_scale,
        min_gap=objective.min_gap,
        self_condition=objective.self_condition > 0,
        self_condition_guidance=section.guidance,
    )


def read_out(made: Sequence[tuple[int, int, list[int]]], rows: TokenRows, *, pairs: bool) -> list[Text]:
    """Texts of (seed, place, ids); those of pairs with their source and reference, read back from their ids too."""
    tokenizer, end = load_tokenizer(rows.path / "tokenizer"), rows.vocabulary.end_id
    texts = decode_texts(tokenizer, [np.array(ids, np.int64) for _, _, ids in made], end)
    sides: dict[int, tuple[str, str]] = {}
    if pairs:
        places = np.unique(np.array([place for _, place, _ in made]))
        bounds = zip(rows.ids(places), rows.condition_lengths(places), rows.lengths(places), strict=True)
        for place, (row, middle, last) in zip(places.tolist(), bounds, strict=True):
            source, reference = decode_texts(tokenizer, [row[:middle], row[middle:last]], end)
            sides[place] = (source, reference)
    return [
        Text(
            id=place,
            seed=seed,
            text=text,
            ids=tuple(ids),
            source=sides[place][0] if pairs else None,
            reference=sides[place][1] if pairs else None,
        )
        for (seed, place, ids), text in zip(made, texts, strict=True)
    ]


def describe(section: Sample, sampling: Sampling, context: StageContext) -> dict[str, JSON]:
    """Everything that made the samples: sampler, weights by their digest, inputs by their keys, versions."""
    return {
        **asdict(sampling.config),
        "count": section.count,
        "seeds": list(section.seeds),
        "split": section.split if sampling.sources is not None else None,
        "weights": section.weights,
        "weights_digest": sampling.trained.digest,
        "inputs": {role: str(each.manifest.fingerprint) for role, each in context.inputs.items()},
        "versions": {name: version(name) for name in ("embedded-language-flows", "torch", "tokenizers")},
    }


def _recorded(parts: Path) -> dict[tuple[int, int], list[int]]:
    """What an interrupted run sampled, by (seed, place), whatever its batches were."""
    made: dict[tuple[int, int], list[int]] = {}
    for path in sorted(parts.glob("*.json")):
        saved = json.loads(path.read_text(encoding="utf-8"))
        made |= {
            (saved["seed"], place): ids for place, ids in zip(saved["places"], saved["ids"], strict=True)
        }
    return made


def _batches(missing: Sequence[tuple[int, int]], size: int) -> Iterator[tuple[int, list[int]]]:
    """Batches of one seed each, in order."""
    for seed in dict.fromkeys(seed for seed, _ in missing):
        places = [place for other, place in missing if other == seed]
        for first in range(0, len(places), size):
            yield seed, places[first : first + size]
