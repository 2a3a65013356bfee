"""What sections of a configuration must say together; each by itself is checked where it is declared."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, get_args

from elf.cache.manifest import JSON
from elf.pipeline.section import Section
from elf.stages.model.token_config import TokenMethod

if TYPE_CHECKING:
    from elf.stages.config import Experiment


def check_consistent(experiment: "Experiment") -> None:
    """Raises ValueError for settings that contradict each other or lack what they need."""
    _check_sources(experiment)
    _check_names(experiment)
    _check_splits(experiment)
    _check_followed(experiment)
    _check_students(experiment)
    _check_method(experiment)


def _check_sources(experiment: "Experiment") -> None:
    """One encoder, where there is need of one; one tokenizer, and room for pairs."""
    needless = not experiment.train.encodes and experiment.tokenize.tokenizer is not None
    named = (experiment.pretrain is not None) + (experiment.encode.encoder is not None)
    if named != 1 and not (named == 0 and needless):
        raise ValueError(
            "name the encoder once: `encode.encoder` (pretrained) or `pretrain` (trained on the spot)"
        )
    if experiment.tokenize.tokenizer is not None and experiment.tokenize.subwords is not None:
        raise ValueError("name the tokenizer once: `tokenize.tokenizer` or `tokenize.subwords`")
    if (
        experiment.pretrain is not None
        and experiment.tokenize.tokenizer is None
        and experiment.tokenize.subwords is None
    ):
        raise ValueError(
            "an encoder trained on the spot needs a tokenizer: name `tokenize.tokenizer` or `tokenize.subwords`"
        )
    if experiment.data.train.pairs and experiment.tokenize.max_source is None:
        raise ValueError("set `tokenize.max_source`, the longest condition in tokens: the data are pairs")


def _check_names(experiment: "Experiment") -> None:
    """Every setting and control goes by a name of its own."""
    names = [setting.name for setting in experiment.sample]
    if len(set(names)) != len(names):
        raise ValueError(f"two sampling settings share a name; give each its own: {', '.join(sorted(names))}")
    kinds = [control.kind for control in experiment.evaluate.controls]
    if len(set(kinds)) != len(kinds):
        raise ValueError(f"two controls are of one kind; name each once: {', '.join(sorted(kinds))}")
    if both := sorted({*names} & {*kinds}):
        raise ValueError(f"the sampling setting `{both[0]}` has the name of a control; give it another")


def _check_splits(experiment: "Experiment") -> None:
    """What samples and controls are made of is there."""
    pairs = experiment.data.train.pairs
    for setting in experiment.sample if pairs else ():
        if not experiment.data.has(setting.split):
            raise ValueError(
                f"the sampling setting `{setting.name}` takes its sources {_missing(setting.split)}"
            )
    for control in experiment.evaluate.controls:
        if control.of_pairs and not pairs:
            raise ValueError(
                f"the control `{control.kind}` is of pairs, and `data.train` has no `source`; leave that control out"
            )
        if control.split == "test" and not experiment.data.has("test"):
            raise ValueError(f"the control `{control.kind}` takes its rows {_missing('test')}")


def _check_followed(experiment: "Experiment") -> None:
    """No more texts are followed than are made; of pairs, whose number the rows say, the stage checks it."""
    for setting in experiment.sample:
        if not experiment.data.train.pairs and setting.trajectories > setting.count:
            raise ValueError(
                f"the sampling setting `{setting.name}` makes {setting.count} texts a seed, so its `trajectories` "
                f"must be {setting.count} at most, not {setting.trajectories}"
            )


def _check_students(experiment: "Experiment") -> None:
    """Distilled models that are sampled are made."""
    rounds = experiment.distill.rounds if experiment.distill is not None else ()
    for setting in experiment.sample:
        if setting.student is not None and setting.student not in rounds:
            there = (
                f"`distill.rounds` has {', '.join(map(str, rounds))}" if rounds else "there is no `distill`"
            )
            raise ValueError(
                f"the sampling setting `{setting.name}` takes the student of {setting.student} steps, and {there}; "
                "name a round that is distilled, or leave `student` out to sample the trained model"
            )


def _check_method(experiment: "Experiment") -> None:
    """A baseline has nothing that only a flow has, and is sampled in its own way."""
    train = experiment.train
    flow = train.method == "flow"
    for setting in experiment.sample:
        if setting.method in get_args(TokenMethod) if flow else setting.method != train.method:
            wanted = "`method: ode` or `sde`" if flow else f"`method: {train.method}`"
            raise ValueError(
                f"the sampling setting `{setting.name}` has `method: {setting.method}`, and the model is of "
                f"`train.method: {train.method}`; give the setting {wanted}, or train another model"
            )
    if train.embeddings is not None and not flow:
        raise ValueError(
            f"`train.embeddings` is of flows, and `train.method` is {train.method}; take it out, for a baseline has "
            "a table anyway"
        )
    if train.encodes:
        return
    what = "`train.embeddings`" if flow else f"`train.method: {train.method}`"
    if taken := [name for name in ("weights", "distill") if getattr(experiment, name) is not None]:
        raise ValueError(
            f"`{taken[0]}` is of flows of an encoder's states, and {what} trains something else; take `{taken[0]}` or "
            "that out"
        )
    changed = dict(_changed(train.latents, "train.latents"))
    if not flow:
        kept = ("size", "depth", "hidden", "heads", "dropout")
        changed |= _changed(train.model, "train.model", kept=kept)
        changed |= _changed(train.objective, "train.objective", kept=("padding",))
    if changed:
        back = ", ".join(f"{path}={json.dumps(value)}" for path, value in changed.items())
        raise ValueError(
            f"{what} takes no encoder's states, hence has no use for {', '.join(changed)}; take "
            f"{'that' if len(changed) == 1 else 'these'} out, or set back what another file sets: {back}"
        )


def _changed(section: Section, path: str, *, kept: tuple[str, ...] = ()) -> Iterator[tuple[str, JSON]]:
    """Settings that are not at their defaults, with these."""
    for name, field in type(section).model_fields.items():
        if name not in kept and getattr(section, name) != field.default:
            yield f"{path}.{name}", field.default


def _missing(split: str) -> str:
    or_holdout = " and no `data.holdout`" if split == "validation" else ""
    return (
        f"from the {split} split, and there is no `data.{split}`{or_holdout}; add it, or name another `split`"
    )
