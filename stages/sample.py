"""Stage sample: a trained model → `samples.jsonl` and the `settings.json` that made it.

Text i of seed s is a function of (weights, settings, s, i): all of its random numbers are drawn for (s, i) alone. The
number of processes and the place where an interrupted run goes on have no part in it, to the bit on one kind of machine
with the same threads a process; the batch size may round it differently. Rows of pairs give one text each, conditioned
on the stored states of their source; text otherwise starts from noise alone.

Processes take the batches in turn. Each records its own under `parts/` as soon as it is done, where the next run finds
it; the first process writes the result, and `trajectory.json` where texts are followed (`elf.stages.following`).
"""

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

from elf.cache.files import make_folder, remove_at_once, write_atomic
from elf.cache.manifest import JSON
from elf.pipeline.devices import note_devices
from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.stage import Compute, StageContext
from elf.stages.compute import SampleCompute
from elf.stages.config import Sample
from elf.stages.devices import choose_compile, describe_devices
from elf.stages.following import follow
from elf.stages.latents import open_ids, open_latents
from elf.stages.memory import keep_freed_memory
from elf.stages.model.speeding import compile_blocks
from elf.stages.rows import TokenRows
from elf.stages.sampled import Batch, Made, Part, cut, read_parts, write_part
from elf.stages.sampling import Sampling, sampler_config
from elf.stages.team import Team, join
from elf.stages.texts import SAMPLES, SETTINGS, Text, write_texts
from elf.stages.token_sampling import TokenSampling, open_token_sampling
from elf.stages.trained import load_trained, method_of
from elf.stages.trajectory import TRAJECTORY, write_trajectory
from elf.stages.vocabulary import decode_texts, load_tokenizer

AnySampling: TypeAlias = Sampling | TokenSampling
PARTS = "parts"
POSITIONS = {"cpu": 4096, "cuda": 65536}
"""Positions of one batch where `compute.sample.batch` names no number of rows."""


def run(section: Sample, context: StageContext) -> Mapping[str, JSON]:
    """Sample every seed of one setting; the facts are the first process's."""
    keep_freed_memory()
    team = join(context.compute)
    if not context.compute.several:  # those that were launched are told of already
        note_devices(context.out, describe_devices(team.device.type))
    sampling, rows = open_sampling(section, context, team.device)
    count = section.count if sampling.sources is None else rows.rows
    if section.trajectories > count:
        raise Misconfigured(
            f"sample.trajectories is {section.trajectories}, but the setting {section.name!r} makes {count} texts a "
            f"seed; follow {count} at most."
        )
    size = context.compute.batch or max(1, POSITIONS[team.device.type] // sampling.trained.model.length)
    batches = cut(section.seeds, count, size)
    made = sample_all(sampling, batches, context, team)
    facts = conclude(section, context, sampling, rows, made.all_of(batches)) if team.writes else {}
    team.leave()
    return facts


def sample_all(sampling: AnySampling, batches: Sequence[Batch], context: StageContext, team: Team) -> Made:
    """Have all batches sampled; the first process knows what all of them gave, and what was recorded before."""
    parts = make_folder(context.out / PARTS)
    made = Made(parts)
    if team.writes:
        for part in read_parts(parts):
            made.add(part)
    missing = team.share(made.left(batches))
    total = sum(len(each.places) for each in batches)
    if len(batches) < team.size:
        context.progress.note(
            f"There is a batch for {len(batches)} of the {team.size} processes only; compute.sample.batch at "
            f"{max(1, total // team.size)} or less has work for all."
        )
    with context.progress.bar("sample", total, unit="texts", done=len(made)) as bar:
        for first in range(0, len(missing), team.size):
            turn = missing[first : first + team.size]
            given = [sample_batch(sampling, each, parts) for each in turn[team.rank : team.rank + 1]]
            for part in chain(*team.gather(given)):
                made.add(part)
                bar.advance(len(part.places))
    return made


def sample_batch(sampling: AnySampling, batch: Batch, parts: Path) -> Part:
    """Sample a batch and record it."""
    ids = sampling.ids(batch.seed, batch.places)
    part = Part(batch.seed, batch.places, tuple(tuple(row.tolist()) for row in ids))
    write_part(parts, part)
    return part


def conclude(
    section: Sample,
    context: StageContext,
    sampling: AnySampling,
    rows: TokenRows,
    made: Sequence[tuple[int, int, Sequence[int]]],
) -> dict[str, JSON]:
    """Write the result, take the records away; the facts of the run."""
    texts = read_out(made, rows, pairs=sampling.sources is not None)
    write_texts(context.out / SAMPLES, texts)
    if section.trajectories and isinstance(sampling, Sampling):
        seed, tokenizer = section.seeds[0], load_tokenizer(rows.path / "tokenizer")
        followed = [ids for _, _, ids in made[: section.trajectories]]
        write_trajectory(context.out / TRAJECTORY, follow(sampling, tokenizer, seed, followed))
    settings = describe(section, sampling, context)
    write_atomic(context.out / SETTINGS, json.dumps(settings, indent=1, sort_keys=True) + "\n")
    remove_at_once(context.out / PARTS)
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


def open_sampling(
    section: Sample, context: StageContext, device: torch.device
) -> tuple[AnySampling, TokenRows]:
    """The model, a flow or a baseline, and the rows it is to be used with; refuses what does not fit."""
    if len(set(section.seeds)) != len(section.seeds) or not section.seeds:
        raise Misconfigured(
            f"sample.seeds is {list(section.seeds)}; give one or more seeds, each of them once."
        )
    model = context.inputs["model"].path
    if method_of(model) == "flow":
        return prepare(section, context, device)
    rows = TokenRows.open(context.inputs["tokens"].path)
    return open_token_sampling(section, model, rows, str(device)), rows


def prepare(section: Sample, context: StageContext, device: torch.device) -> tuple[Sampling, TokenRows]:
    """A flow, checked against the tokens and states it is to be used with; refuses what does not fit."""
    tokens, latents = context.inputs["tokens"], context.inputs.get("latents")
    rows = TokenRows.open(tokens.path)
    trained = load_trained(context.inputs["model"].path, section.weights, device)
    trained.card.check_fits(vocabulary=rows.vocabulary)
    if choose_compile(sample_compute(context.compute).compile, device.type, context.progress):
        compile_blocks(trained.network)
    pairs, table = rows.vocabulary.max_source is not None, trained.model.table
    if pairs and latents is None and not table:
        raise Failed(
            f"The rows in {rows.path} are pairs, but no encoded sources were given to condition on; give the step its "
            "input 'latents'."
        )
    sources = open_ids(tokens) if pairs and table else None
    if latents is not None:
        trained.card.check_fits(encoder=latents.manifest.facts["encoder"])
        sources = open_latents(tokens, latents, trained.card.scale, drops=False)
        if sources.width != trained.model.width:
            raise Failed(
                f"The model was trained with width {trained.model.width}, but is given states of width "
                f"{sources.width}. Use the states of the encoder it was trained with."
            )
    config, vocabulary = sampler_config(section, trained), rows.vocabulary
    return Sampling(trained, config, vocabulary, sources, str(device), section.precision), rows


def read_out(made: Sequence[tuple[int, int, Sequence[int]]], rows: TokenRows, *, pairs: bool) -> list[Text]:
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


def describe(section: Sample, sampling: AnySampling, context: StageContext) -> dict[str, JSON]:
    """Everything that made the samples: sampler, weights by their digest, inputs by their keys, versions; `precision`
    where it is not float32."""
    return {
        **sampling.told(),
        **({} if sampling.precision == "float32" else {"precision": sampling.precision}),
        "count": section.count,
        "seeds": list(section.seeds),
        "split": section.split if sampling.sources is not None else None,
        "weights": section.weights,
        "weights_digest": sampling.trained.digest,
        "inputs": {role: str(each.manifest.fingerprint) for role, each in context.inputs.items()},
        "versions": {name: version(name) for name in ("embedded-language-flows", "torch", "tokenizers")},
    }
