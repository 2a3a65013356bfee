"""``elf report RUN…``: where the page of a run lies, or one page of several runs."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from elf.cache.files import make_folder
from elf.cache.store import Artifact
from elf.flows.request import RUNS, shipped_folder
from elf.flows.terminal import make_console
from elf.pipeline.config import load_experiment
from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.plan import names_by_key
from elf.pipeline.runs import PAGE, RESOLVED, RunRecord, read_run
from elf.stages.config import Experiment
from elf.stages.spending import Spending

ROLES = {"train": "train", "tokens": "tokenize", "latents": "encode"}
"""Steps of a run by the roles of the report stage's inputs, but for texts and their scores."""
NEEDED = ("train", "tokenize")
LONGEST = 100
"""Letters of a folder's name."""


def report_runs(names: Sequence[str], out: str | None, *, as_json: bool) -> None:
    """Name the page of one run, made anew if it is not there or a folder is given; or write one page of several."""
    if twice := [name for name in names if names.count(name) > 1]:
        raise Misconfigured(f"The run '{twice[0]}' is named twice; name each run once.")
    records = [read_run(RUNS, name) for name in names]
    page = records[0].path / PAGE
    # A link leads to the page that the stage made; a file is of an earlier call and may be of an earlier state.
    made = len(records) > 1 or out is not None or not (page.is_symlink() and page.is_file())
    if made:
        folder = Path(out) if out is not None else _folder(records)
        page = write_page(records, folder, alone=out is None)
    if as_json:
        print(json.dumps({"runs": list(names), "report": str(page), "made": made}, indent=1))
        return
    make_console().print(f"Report: {page}", highlight=False, soft_wrap=True)


def _folder(records: Sequence[RunRecord]) -> Path:
    """The run's own folder; of several, one named after all of them."""
    if len(records) == 1:
        return records[0].path
    names = [record.name for record in records]
    name = "+".join(names)
    if len(name) > LONGEST or (RUNS / name / RESOLVED).exists():
        name = f"{names[0][:50]}+{len(names) - 1}-more-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return RUNS / name


def write_page(
    records: Sequence[RunRecord], folder: Path, *, alone: bool, spending: Spending | None = None
) -> Path:
    """The page, and its figures where the folder holds nothing else. ``spending``: what several runs cost."""
    from elf.stages.experiment import ReportStep
    from elf.stages.page import Page
    from elf.stages.report import compose
    from elf.stages.side_by_side import Run, compose_runs

    runs = [
        Run(record.name, experiment, inputs_of(record, experiment))
        for record in records
        for experiment in [load_experiment(str(record.path / RESOLVED), Experiment, [], shipped_folder())]
    ]
    if len(runs) > 1:
        return compose_runs(runs, spending).write(make_folder(folder))
    run = runs[0]
    section = ReportStep(experiment=run.name, report=run.experiment.report)
    keys = ((step, str(artifact.manifest.fingerprint)) for step, artifact in records[0].steps.items())
    page = compose(section, run.inputs, names_by_key(keys))
    return (Page(page.html, ()) if alone else page).write(make_folder(folder))


def inputs_of(record: RunRecord, experiment: Experiment) -> Mapping[str, Artifact]:
    """What of a run the report stage would be given, in the order of its configuration. Raises Failed where there is
    too little for a page."""
    steps = record.steps
    if missing := [name for name in NEEDED if name not in steps]:
        raise Failed(
            f"The run '{record.name}' has no finished step {missing[0]} in the store, so there is nothing to report: "
            "run it again with `elf run`, with the settings of its experiment.yaml."
        )
    texts = {f"samples/{each.name}": f"sample-{each.name}" for each in experiment.sample}
    texts |= {f"controls/{each.kind}": f"control-{each.kind}" for each in experiment.evaluate.controls}
    rounds = experiment.distill.rounds if experiment.distill is not None else ()
    wanted = ROLES | {f"distilled/{steps}": f"distill-{steps}" for steps in rounds} | texts
    for role in texts:
        name = role.partition("/")[2]
        if texts[role] in steps:
            wanted[f"scores/{name}"] = f"evaluate-{name}"
    return {role: steps[step] for role, step in wanted.items() if step in steps}
