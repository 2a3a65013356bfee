"""``elf score``: anybody's texts under the scorer that runs are judged by."""

import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from elf.cache.store import Store
from elf.flows.plan_printing import print_wrapped
from elf.flows.request import open_store, shipped_folder
from elf.flows.score_table import ScoreRow, print_scores
from elf.flows.terminal import Narrator, make_console, make_progress
from elf.pipeline.config import load_experiment
from elf.pipeline.errors import Misconfigured
from elf.pipeline.plan import Plan, Step
from elf.pipeline.runner import materialise
from elf.stages.assets import locate
from elf.stages.config import Asset, Evaluate, Experiment
from elf.stages.config import Judge as JudgeSection
from elf.stages.experiment import FETCH
from elf.stages.protocol import Judged
from elf.stages.scores import Floor, assess, library_versions, measure
from elf.stages.submitted import read_submission
from elf.stages.texts import Text

ROUND_TRIP = "Texts and references as given: neither went through a tokenizer."


def score_file(
    file: str,
    *,
    references: str | None,
    judge: str | None,
    window: int | None,
    floor: float | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Score the texts of ``file``, against ``references`` if there are any and by ``judge`` if one is named."""
    if floor is not None and not math.isfinite(floor):
        raise Misconfigured(f"--floor is {floor}; it must be a number of nats.")
    texts = read_submission(Path(file), Path(references) if references is not None else None)
    out = Console(stderr=True) if as_json else make_console()
    facts, judged = None, None
    if judge is not None:
        section = _judge_section(judge, window)
        facts, judged = _judge(texts, section, open_store(store), out)
    elif window is not None:
        raise Misconfigured("--window is the judge's; name one by --judge.")
    measured = measure(texts, None, judged)
    least = Floor(floor, "--floor") if floor is not None else None
    result = {
        **assess(measured, copy_ngram=Evaluate().copy_ngram, floor=least),
        "judge": facts,
        "settings": None,
        "samples": {"stage": "file", "file": file, "references": references},
        "versions": library_versions(),
    }
    if as_json:
        print(json.dumps(result, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False))
    else:
        _print(out, Path(file).stem, result)


def _judge_section(judge: str, window: int | None) -> JudgeSection:
    """The judge of a configuration, or of an asset's URI."""
    if ":" in judge:
        section = JudgeSection(asset=Asset(uri=judge), name=judge.rpartition("/")[2])
    else:
        found = load_experiment(judge, Experiment, (), shipped_folder()).evaluate.judge
        if found is None:
            raise Misconfigured(f"The configuration {judge} names no judge; name another, or path:FOLDER.")
        section = found
    return section if window is None else section.model_copy(update={"window": window})


def _judge(
    texts: Sequence[Text], section: JudgeSection, store: Store, out: Console
) -> tuple[dict[str, Any], list[Judged]]:
    """Who judged, and each text's verdict; the judge's files are fetched into the store once."""
    from elf.stages.judging import judge_facts, judge_texts, open_judge

    plan = Plan([Step("fetch-judge", FETCH, locate(section.asset), prefix="judge")])
    progress = make_progress(out)
    with store.using(plan.places()):
        outcomes = materialise(plan, store, watch=Narrator(out, plan), progress=progress)
        artifact = outcomes["fetch-judge"].artifact
        judge = open_judge(section, artifact, "auto")
        with tempfile.TemporaryDirectory() as parts:
            judged = judge_texts(texts, judge, rows=None, parts=Path(parts), progress=progress)
    return judge_facts(section, judge, artifact), judged


def _print(out: Console, name: str, result: dict[str, Any]) -> None:
    row = ScoreRow(name, result)
    print_scores(out, [row])
    print_wrapped(out, ROUND_TRIP, "dim")
