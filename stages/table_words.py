"""How a table's protocol and that of the published numbers differ, in words, from the configurations of its rows."""

from collections.abc import Iterable, Iterator, Sequence

from elf.pipeline.wording import amount_text
from elf.stages.config import Experiment
from elf.stages.published import PUBLISHED, TRAINED, Published
from elf.stages.sample_settings import Sample
from elf.stages.table_tokens import Seen
from elf.stages.tables import Table

PUBLISHED_SEEDS, PUBLISHED_TEXTS = 6, 1000
CASE = {
    "bleu": "BLEU is of lower-cased text with effective order on both sides; `elf show` has ours with case too.",
    "rouge_1": "ROUGE is of lower-cased words, stemmed, on both sides.",
}


def differences(
    table: Table, experiment: Experiment, settings: Sequence[Sample], seen: Iterable[Seen]
) -> Iterator[tuple[str, str]]:
    """What about (judge, case, split, seeds, tokens) and a sentence or two; ``settings`` are those of the rows."""
    published = PUBLISHED[table.task]
    yield "published", f"{published.title}; nothing in these columns was measured here. {published.protocol}"
    if published.judge:
        yield "judge", _judge(experiment, published)
        yield "case", "Texts are judged as the tokenizer gives them back; T5's keeps the case."
    else:
        yield "case", CASE[table.scores[0].name]
    yield "split", _split(experiment, settings)
    yield "seeds", _seeds(settings, pairs=experiment.data.train.pairs)
    yield "counting", published.differs
    if table.task == "owt":
        yield "tokens", tokens_in_words(seen)


def same_judge(table: Table, experiment: Experiment) -> bool:
    """Whether our Gen-PPL is by the judge of the published ones; true where those have none."""
    published, judge = PUBLISHED[table.task], experiment.evaluate.judge
    if not published.judge:
        return True
    return judge is not None and published.judged_by(judge.name, judge.window)


def _judge(experiment: Experiment, published: Published) -> str:
    judge, theirs = experiment.evaluate.judge, f"{published.judge} over {published.window:,} tokens"
    if judge is None:
        return f"None is configured, so there is no Gen-PPL of ours beside that of {theirs}."
    ours = f"{judge.name} over {judge.window:,} tokens, in {judge.precision}"
    if published.judged_by(judge.name, judge.window):
        return f"{ours}; the published numbers' too."
    return f"{ours}; the published numbers are of {theirs}, so the columns do not compare."


def _split(experiment: Experiment, settings: Sequence[Sample]) -> str:
    data = experiment.data
    if data.train.pairs:
        splits = sorted({each.split for each in settings})
        ours = f"Every pair of the {' and the '.join(splits)} split, once a seed"
        return (
            f"{ours}, as published."
            if splits == ["test"]
            else f"{ours}; the published are of the test split."
        )
    held = (
        f"{100 * data.holdout:g} % of the documents, chosen by hash, are held out from training here"
        if data.holdout
        else ("no document is held out from training here")
    )
    return f"Texts start from noise and belong to no split; {held}."


def _seeds(settings: Sequence[Sample], *, pairs: bool) -> str:
    told = sorted({(len(each.seeds), 0 if pairs else each.count) for each in settings})
    if pairs:
        seeds = " or ".join(str(seeds) for seeds, _ in told)
        return f"{seeds} here, ± over texts where it is one; of how many the published are is not told."
    ours = " or ".join(f"{count:,} texts of each of {seeds} seeds" for seeds, count in told)
    same = told == [(PUBLISHED_SEEDS, PUBLISHED_TEXTS)]
    theirs = f"{PUBLISHED_TEXTS:,} texts of each of {PUBLISHED_SEEDS}"
    return f"{ours}, as published." if same else f"{ours} here, {theirs} as published."


def tokens_in_words(seen: Iterable[Seen]) -> str:
    """Trained on how many, both ways, ours and published."""
    told = [
        f"{each.told(each.documents)} by documents, {each.told(each.rows)} by rows times length ({each.step})"
        for each in seen
    ]
    ours = f"Ours: {'; '.join(told)}. " if told else ""
    first = TRAINED[0]
    by_rows = "" if first.by_rows is None else f", {amount_text(round(first.by_rows))} by rows times length"
    others = ", ".join(each.method for each in TRAINED[1:])
    return (
        f"{ours}Published: {first.method} {amount_text(round(first.by_documents))} by documents{by_rows}; {others} "
        f"{amount_text(round(TRAINED[1].by_documents))}."
    )
