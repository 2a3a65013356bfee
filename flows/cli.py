"""The command line. Each command imports what it needs when it runs, so that ``elf --help`` is instant."""

import sys
from typing import Annotated

import typer

from elf.flows.arguments import spread
from elf.flows.commands_cache import cache
from elf.flows.commands_remote import pull, push
from elf.flows.failing import Ended, telling
from elf.flows.options import AsJson, Config, Debug, Set, StorePath

app = typer.Typer(
    name="elf",
    help="Embedded language flows: from text to a trained model and an honest table of scores.",
    epilog="CONFIG is the path of a YAML file or a shipped name: quickstart, tiny, owt-full, …",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.add_typer(cache, name="cache")
cache.command()(push)
cache.command()(pull)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"elf {version('embedded-language-flows')}")
        raise typer.Exit


@app.callback()
def _elf(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def init(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A new folder.")],
    debug: Debug = False,
) -> None:
    """Begin a project of your own in a new folder."""
    with telling(debug=debug):
        from elf.flows.commands_init import make_project

        make_project(folder)


@app.command()
def run(
    config: Config,
    set_: Set = None,
    only: Annotated[
        str | None, typer.Option(metavar="STAGE", help="Build this alone; its inputs must exist.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="STAGE", help="Build up to this and stop.")] = None,
    force: Annotated[
        list[str] | None, typer.Option(metavar="STAGE", help="Build again, and compare with what was there.")
    ] = None,
    store: StorePath = None,
    debug: Debug = False,
) -> None:
    """Build what is missing, then name the report."""
    with telling(debug=debug):
        from elf.flows.commands_run import run_experiment

        run_experiment(config, set_ or (), store, only=only, until=until, force=frozenset(force or ()))


@app.command()
def sweep(
    config: Config,
    set_: Set = None,
    jobs: Annotated[int, typer.Option(metavar="N", min=1, help="Variants that run at once.")] = 1,
    until: Annotated[str | None, typer.Option(metavar="STAGE", help="Build up to this and stop.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what it would build and cost.")] = False,
    store: StorePath = None,
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run all variants of a configuration, then name their page."""
    with telling(debug=debug):
        from elf.flows.commands_sweep import plan_sweep, run_sweep

        if plan:
            plan_sweep(config, set_ or (), store, until=until, as_json=json)
        else:
            run_sweep(config, set_ or (), store, jobs=jobs, until=until, as_json=json)


@app.command()
def plan(
    config: Config,
    set_: Set = None,
    store: StorePath = None,
    probe: Annotated[bool, typer.Option("--probe", help="Measure this machine anew.")] = False,
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show what would be built, and what it costs."""
    with telling(debug=debug):
        from elf.flows.plan_table import show_plan

        show_plan(config, set_ or (), store, probe=probe, as_json=json)


@app.command()
def why(
    config: Config,
    stage: Annotated[
        str | None, typer.Argument(metavar="STAGE", help="A stage or step; default: all.")
    ] = None,
    set_: Set = None,
    store: StorePath = None,
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Say why a step is reused or must be built."""
    with telling(debug=debug):
        from elf.flows.commands_look import show_why

        show_why(config, stage, set_ or (), store, as_json=json)


@app.command()
def runs(json: AsJson = False, debug: Debug = False) -> None:
    """List the runs of this folder."""
    with telling(debug=debug):
        from elf.flows.commands_look import show_runs

        show_runs(as_json=json)


@app.command()
def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A name that `elf runs` lists.")],
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show one run: steps, origin, scores, report."""
    with telling(debug=debug):
        from elf.flows.commands_look import show_run

        show_run(run, as_json=json)


@app.command()
def ledger(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Names that `elf runs` lists.")],
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Tell what runs cost: tokens, operations, seconds."""
    with telling(debug=debug):
        from elf.flows.commands_ledger import show_ledger

        show_ledger(runs, as_json=json)


@app.command()
def doctor(store: StorePath = None, json: AsJson = False, debug: Debug = False) -> None:
    """Check this machine, line by line, with cures."""
    with telling(debug=debug):
        from elf.flows.doctor import examine

        examine(store, as_json=json)


@app.command("import")
def import_(
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="A file, or hub:REPO@COMMIT#FILE.")],
    config: Annotated[
        str, typer.Option(metavar="CONFIG", help="The experiment whose training it stands in for.")
    ] = "owt-full",
    set_: Set = None,
    store: StorePath = None,
    debug: Debug = False,
) -> None:
    """Take weights of the authors' program as a trained model."""
    with telling(debug=debug):
        from elf.flows.commands_weights import import_weights

        import_weights(checkpoint, config, set_ or (), store)


@app.command()
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A name that `elf runs` lists.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="The checkpoint to write, FILE.pt.")],
    student: Annotated[
        int | None,
        typer.Option(metavar="N", help="The distilled model of N steps; default: the trained one."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Write a run's weights as the authors' program does."""
    with telling(debug=debug):
        from elf.flows.commands_weights import export_weights

        export_weights(run, file, student=student)


@app.command()
def sample(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A name that `elf runs` lists.")],
    n: Annotated[int, typer.Option("--n", metavar="N", min=1, help="Texts.")] = 5,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The source, for a model of pairs.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="SEED", help="Text i of a seed is always the same.")] = 0,
    setting: Annotated[
        str | None, typer.Option(metavar="NAME", help="A sampling setting of the run; default: its first.")
    ] = None,
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Print a few texts of a finished run."""
    with telling(debug=debug):
        from elf.flows.commands_sample import print_samples

        print_samples(run, count=n, prompt=prompt, seed=seed, setting=setting, as_json=json)


@app.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="RUN/ROW", help="A row of a run's score table.")],
    second: Annotated[str, typer.Argument(metavar="RUN/ROW", help="One of the same items.")],
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compare two rows of scores, item by item."""
    with telling(debug=debug):
        from elf.flows.commands_compare import compare_rows

        compare_rows(first, second, as_json=json)


@app.command()
def table(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One of those that are listed without it.")
    ] = None,
    set_: Set = None,
    figure: Annotated[
        str | None, typer.Option(metavar="FILE.png", help="Draw its rows over entropy, published ones too.")
    ] = None,
    store: StorePath = None,
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Set a table of the paper beside ours, with what is missing."""
    with telling(debug=debug):
        from elf.flows.commands_table import list_tables, show_table

        if name is None:
            list_tables(as_json=json)
        else:
            show_table(name, set_ or (), store, figure=figure, as_json=json)


@app.command()
def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Names that `elf runs` lists.")],
    out: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Write the page and its figures here; default: under ./runs."),
    ] = None,
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Name a run's page, or set several runs side by side."""
    with telling(debug=debug):
        from elf.flows.commands_report import report_runs

        report_runs(runs, out, as_json=json)


@app.command()
def score(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Texts: .jsonl as samples.jsonl, or .txt.")],
    references: Annotated[
        str | None, typer.Option(metavar="FILE", help="Their references, by id; .txt by line.")
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(metavar="WHICH", help="A configuration whose judge it is, path:FOLDER or hub:…"),
    ] = None,
    window: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Judge tokens of a text that are scored.")
    ] = None,
    floor: Annotated[
        float | None, typer.Option(metavar="NATS", help="Entropy below which texts are degenerate.")
    ] = None,
    store: StorePath = None,
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Score anybody's texts as runs are scored."""
    with telling(debug=debug):
        from elf.flows.commands_score import score_file

        score_file(
            file,
            references=references,
            judge=judge,
            window=window,
            floor=floor,
            store=store,
            as_json=json,
        )


@app.command()
def up(
    host: Annotated[
        str | None, typer.Option(metavar="HOST", help="Where the server listens; default: 127.0.0.1 alone.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(metavar="PORT", min=1, max=65535, help="Default: the first free one from 4200."),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="PostgreSQL instead of SQLite; better in $PREFECT_SERVER_DATABASE_CONNECTION_URL.",
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Start a Prefect server and worker for this folder."""
    with telling(debug=debug):
        from elf.flows.commands_serve import bring_up

        bring_up(host=host, port=port, database=database)


@app.command()
def down(debug: Debug = False) -> None:
    """End what `elf up` started, flow runs too."""
    with telling(debug=debug):
        from elf.flows.commands_serve import bring_down

        bring_down()


@app.command()
def status(json: AsJson = False, debug: Debug = False) -> None:
    """Show what of `elf up` is there."""
    with telling(debug=debug):
        from elf.flows.commands_status import show_status

        show_status(as_json=json)


def main() -> None:
    """Entry of the ``elf`` command."""
    try:
        app(spread(sys.argv[1:]), prog_name="elf")
    except Ended as end:
        sys.exit(end.code)
