"""Stage weights: a checkpoint of the authors' program in the place of training.

What comes out has the form of a training artifact: `model.json` and one checkpoint. The network's shape is that of
the tensors and must be the one configured; only the decode head may have more entries than the tokenizer (the
released ones have 32,100 or 32,128). Optimiser state is not taken over.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import torch

from elf.cache.manifest import JSON
from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.section import differences
from elf.pipeline.stage import StageContext
from elf.stages.authors import EMA, RAW, Foreign, find_file, read_file, translate
from elf.stages.checkpoint import Checkpoint, first_not_finite, save
from elf.stages.experiment import WeightsStep
from elf.stages.latents import Scale
from elf.stages.model.config import ModelConfig, ObjectiveConfig, SamplerConfig
from elf.stages.model.decoding import decode
from elf.stages.model.draws import draw_samples
from elf.stages.model.naming import config_from_authors
from elf.stages.model.network import Network
from elf.stages.model.sampler import sample_latents
from elf.stages.shapes import model_config, objective_config
from elf.stages.train_settings import Latents
from elf.stages.trained import CARD, Card, load_trained, load_weights, vocabulary_digest
from elf.stages.vocabulary import Vocabulary, describe_tokenizer, full_vocabulary, load_tokenizer

ANSWER_IDS = 16


def run(section: WeightsStep, context: StageContext) -> Mapping[str, JSON]:
    """Translate the one checkpoint of `context.inputs["checkpoint"]`."""
    path = find_file(context.inputs["checkpoint"].path / "data")
    found = read_file(path)
    vocabulary = _vocabulary(section, context)
    model = fit_model(section, found, vocabulary, path)
    raw, ema = translate(found.raw, path), translate(found.ema, path)
    for part, tensors in ((RAW, raw), (EMA, ema)):
        if bad := first_not_finite(tensors):
            raise Failed(
                f"{path} cannot be imported: in '{part}' {bad} holds NaN or an infinity. Take another checkpoint."
            )
    load_weights(Network(model), raw, source=path)
    averaged = Network(model)
    load_weights(averaged, ema, source=path)
    latents = context.inputs.get("latents")
    card = Card(
        model=model,
        objective=objective_config(section.objective),
        scale=_scale(section.latents),
        vocabulary=vocabulary_digest(vocabulary),
        encoder=latents.manifest.facts["encoder"] if latents is not None else None,
    )
    card.write(context.out / CARD)
    save(
        context.out / "checkpoints",
        Checkpoint(found.step, raw, ema, {}, {"imported": True}),
        keep=1,
    )
    answer = answer_of(averaged.eval(), card.objective)
    if answer != answer_of(load_trained(context.out, "ema").network, card.objective):
        raise Failed(
            f"The weights written from {path} do not answer as those read from it; run the same command again."
        )
    return {
        "parameters": sum(tensor.numel() for tensor in raw.values()),
        "steps": found.step,
        "answer": answer,
        "left_out": list(found.left_out),
    }


def fit_model(section: WeightsStep, found: Foreign, vocabulary: Vocabulary, path: Path) -> ModelConfig:
    """The checkpoint's network, which must be the configured one. Raises Failed naming what differs."""
    try:
        have = config_from_authors(found.raw, length=vocabulary.length)
    except ValueError as error:
        raise Failed(
            f"{path} cannot be imported: {error}. Take an ELF checkpoint of the authors' program."
        ) from error
    want = model_config(section.model, width=have.width, vocabulary=have.vocabulary, length=vocabulary.length)
    unseen = {"prediction", "conditioning", "decoder", "dropout"}
    wanted, given = ({k: v for k, v in asdict(side).items() if k not in unseen} for side in (want, have))
    for field, asked, there in differences(wanted, given):
        raise Failed(
            f"train.model.{field} is {asked} in this configuration, but {there} in {path}. Set it to what the "
            "checkpoint was trained with (tokenize.length for the length)."
        )
    if have.vocabulary < vocabulary.size:
        raise Failed(
            f"{path} has a decode head of {have.vocabulary:,} entries, too few for this tokenizer's "
            f"{vocabulary.size:,}: it was trained with another tokenizer. Name that one (tokenize.tokenizer)."
        )
    return replace(have, prediction=want.prediction)


def answer_of(network: Network, objective: ObjectiveConfig) -> dict[str, JSON]:
    """What a network says to one fixed question: the first ids of an 8-step ODE text, and the state's moments."""
    config = SamplerConfig(
        method="ode",
        steps=8,
        time_mean=objective.time_mean,
        time_std=objective.time_std,
        noise_scale=objective.noise_scale,
        min_gap=objective.min_gap,
        self_condition=objective.self_condition > 0,
    )
    model = network.config
    with torch.inference_mode():
        draws = draw_samples(0, [0], length=model.length, width=model.width, config=config, device="cpu")
        z_BLD = sample_latents(network, draws, config)
        ids_BN = decode(network, z_BLD, config)
    ids: list[JSON] = [int(i) for i in ids_BN[0, :ANSWER_IDS]]
    return {"ids": ids, "mean": float(z_BLD.mean()), "std": float(z_BLD.std())}


def _vocabulary(section: WeightsStep, context: StageContext) -> Vocabulary:
    settings = section.tokenize
    if settings.vocabulary == "used":
        raise Misconfigured(
            "tokenize.vocabulary is 'used', the ids of one training run; imported weights know a whole tokenizer. "
            "Set it to 'full'."
        )
    source = context.inputs["tokenizer"]
    tokenizer = load_tokenizer(source.path / "data", describe_tokenizer(source.manifest.config))
    return full_vocabulary(tokenizer, settings, pairs=section.pairs)


def _scale(latents: Latents) -> Scale:
    if latents.std == "measured":
        raise Misconfigured(
            "train.latents.std is 'measured', but imported weights were trained with one certain number; give it "
            "(0.2 for t5-small)."
        )
    return Scale(latents.mean, latents.std)
