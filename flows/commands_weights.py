"""``elf import`` and ``elf export``: weights from and to the authors' program."""

from collections.abc import Sequence
from pathlib import Path

from elf.flows.request import RUNS, load_request
from elf.flows.terminal import Narrator, make_console, make_progress
from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.runner import materialise
from elf.pipeline.runs import RESOLVED, Naming, RunFolder, read_run
from elf.pipeline.wording import bytes_text


def import_weights(checkpoint: str, config: str, overrides: Sequence[str], store: str | None) -> None:
    """Build the step that stands in for ``config``'s training, and what it needs of it; nothing more."""
    uri = checkpoint if checkpoint.startswith(("path:", "hub:")) else f"path:{checkpoint}"
    name = f"{Path(config).stem}-{Path(checkpoint.rpartition('#')[2]).stem}"
    settings = [f"weights.asset.uri={uri}", f"name={name}", *overrides]
    request = load_request(config, settings, store)
    out = make_console()
    with request.store.using(request.plan.places()):
        folder = RunFolder(RUNS, request.experiment.name, request.experiment, request.plan)
        outcomes = materialise(
            request.plan,
            request.store,
            watch=Naming(folder, Narrator(out, request.plan)),
            progress=make_progress(out),
            until="weights",
        )
        folder.finish(outcomes)
    facts = outcomes["train"].artifact.manifest.facts
    made = f"{facts['parameters']:,} parameters after {facts['steps']:,} steps: {folder.path / 'train'}"
    out.print(made, highlight=False, soft_wrap=True)
    command = f"elf run {config} --set {' '.join(settings)}"
    out.print(f"Sample and score them: {command}", highlight=False, soft_wrap=True)


def export_weights(run: str, file: str, *, student: int | None = None) -> None:
    """Write the last checkpoint of a run's ``train``, or of the distilled ``student`` of so many steps. Raises Failed
    where there is none or the file exists."""
    from elf.stages.authors import SUFFIXES, write_file
    from elf.stages.trained import CARD, Card, last_checkpoint, method_of

    path = Path(file)
    if path.suffix not in SUFFIXES:
        raise Misconfigured(
            f"{file} should end in one of {', '.join(SUFFIXES)}, as checkpoints of torch.save do."
        )
    if path.exists():
        raise Failed(f"{file} exists already; name another file or remove it.")
    if not path.parent.is_dir():
        raise Failed(f"There is no folder {path.parent} to write {path.name} into; make it first.")
    step = "train" if student is None else f"distill-{student}"
    trained = read_run(RUNS, run).steps.get(step)
    if trained is None:
        raise Failed(
            f"The run '{run}' has no finished step {step}; `elf run {RUNS / run / RESOLVED} --until {step}` makes one "
            "where its configuration has it."
        )
    if (method := method_of(trained.path)) != "flow":
        raise Failed(
            f"The run '{run}' is of train.method {method}, and the authors' program knows flows only. Export the run "
            "of a flow."
        )
    model = Card.read(trained.path / CARD).model
    if model.table:
        raise Failed(
            f"The network of '{run}' has a table of embeddings of its own (train.embeddings), for which the authors' "
            "program has no place. Export a run that was trained on an encoder's states."
        )
    predicted = model.prediction
    if predicted != "x":
        raise Failed(
            f"The network of '{run}' predicts {predicted}, which its weights do not tell: the authors' program would "
            "take it for x. Export a run whose train.model.prediction is x."
        )
    found = last_checkpoint(trained.path)
    write_file(path, found.model, found.ema, found.step)
    make_console().print(f"Wrote {file}, {bytes_text(path.stat().st_size)}.", highlight=False, soft_wrap=True)
