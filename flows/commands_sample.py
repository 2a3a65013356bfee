"""``elf sample RUN``: a few texts of a finished run, printed for a person."""

import json

from elf.cache.store import Artifact
from elf.flows.request import RUNS, shipped_folder
from elf.flows.terminal import make_console
from elf.pipeline.config import load_experiment
from elf.pipeline.errors import Failed
from elf.pipeline.runs import RESOLVED, RunRecord, read_run
from elf.stages.config import Experiment


def print_samples(
    run: str, *, count: int, prompt: str | None, seed: int, setting: str | None, as_json: bool
) -> None:
    """Sample ``count`` texts under a setting of the run, the first one by default, and print them."""
    from elf.stages.prompting import choose_setting, open_prompter

    record = read_run(RUNS, run)
    experiment = load_experiment(str(record.path / RESOLVED), Experiment, [], shipped_folder())
    method = experiment.train.method
    chosen = choose_setting(experiment.sample, setting, method="sde" if method == "flow" else method)
    prompter = open_prompter(
        _step(record, chosen.model),
        _step(record, "tokenize"),
        chosen,
        experiment.encode,
        encoder=record.steps.get("pretrain") or record.steps.get("fetch-encoder"),
    )
    texts = prompter.texts(count, seed=seed, prompt=prompt)
    if as_json:
        told = {"run": run, "setting": chosen.name, "seed": seed, "prompt": prompt, "texts": texts}
        print(json.dumps(told, indent=1, ensure_ascii=False))
        return
    out = make_console()
    for number, text in enumerate(texts):
        out.print(f"[dim]{number}[/]  ", end="", highlight=False)
        out.print(text if text.strip() else "(empty)", markup=False, highlight=False)


def _step(record: RunRecord, name: str) -> Artifact:
    found = record.steps.get(name)
    if found is None:
        raise Failed(
            f"The run '{record.name}' has no finished step {name} in the store; `elf run {record.path / RESOLVED} "
            f"--until {name}` builds it."
        )
    return found
