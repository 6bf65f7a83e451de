"""The command line. Every command is a public function of `kinoray` with the same words; errors end here, in one place.

Exit codes: 0 done; 1 the run failed; 2 wrong command, config or data, nothing was started; 75 stopped early, run the
same command to go on; 130 / 143 Ctrl-C / SIGTERM after the state was saved.
"""

import _thread
import json
import signal
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import kinoray
from kinoray.cli import about as cli_about
from kinoray.cli import browse as cli_browse
from kinoray.cli import check as cli_check
from kinoray.cli import cluster as cli_cluster
from kinoray.cli import completion, printing
from kinoray.cli import copying as cli_copying
from kinoray.cli import data as cli_data
from kinoray.cli import describe as cli_describe
from kinoray.cli import export as cli_export
from kinoray.cli import extend as cli_extend
from kinoray.cli import jobs as cli_jobs
from kinoray.cli import new_method as cli_new
from kinoray.cli import pretrain as cli_pretrain
from kinoray.cli import removal as cli_removal
from kinoray.cli import reproduce as cli_reproduce
from kinoray.cli import run as cli_run
from kinoray.cli import search as cli_search
from kinoray.cli import status as cli_status
from kinoray.cli import sweep as cli_sweep
from kinoray.cli import up_down as cli_up_down
from kinoray.cli.options import WHICH_RUNS, Debug, Json, Runs
from kinoray.display.text import printable
from kinoray.errors import FAILED, INTERRUPTED, TERMINATED, KinorayError, UsageError

if TYPE_CHECKING:
    pass

app = typer.Typer(
    help="Continual video-language learning on Ray.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(cli_jobs.jobs_app, name="jobs")
app.add_typer(cli_cluster.cluster_app, name="cluster")
app.add_typer(cli_data.data_app, name="data")
app.add_typer(cli_export.export_app, name="export")
app.add_typer(cli_pretrain.pretrain_app, name="pretrain")
app.add_typer(cli_new.new_app, name="new")

GOES_ON = "The same command goes on from the last saved state."


def main() -> None:
    """Run the command line; the only place where errors become lines and exit codes."""
    signal.signal(signal.SIGTERM, lambda *_: _fail(f"Terminated. {GOES_ON}", TERMINATED))  # runs have their own handler
    sys.unraisablehook = _interrupt_again
    try:
        app()
    except KinorayError as error:
        _fail(f"{type(error).__name__}: {error}", error.exit_code)
    except SystemExit as left:
        if left.code == INTERRUPTED:  # typer's answer to Ctrl-C says nothing
            _fail(f"Interrupted. {GOES_ON}", INTERRUPTED)
        raise
    except BrokenPipeError:  # the reader (`| head`) has gone
        sys.stderr.close()
        sys.exit(FAILED)
    except Exception as error:  # a bug, ours or a method's: the line says where the rest is
        _fail(f"{type(error).__name__}: {error} (traceback in {_write_traceback()}, or use --debug)", FAILED)


def _interrupt_again(ignored: "sys.UnraisableHookArgs") -> None:
    """A Ctrl-C that falls into a destructor is swallowed (imports make many); it is sent again."""
    if ignored.exc_type is KeyboardInterrupt:
        threading.Timer(0.1, _thread.interrupt_main).start()
    else:
        sys.__unraisablehook__(ignored)


def _fail(message: str, code: int) -> None:
    if "--debug" in sys.argv and code not in (INTERRUPTED, TERMINATED):
        traceback.print_exc()
    print(printable(" ".join(message.split())), file=sys.stderr)
    sys.exit(code)


def _write_traceback() -> str:
    with tempfile.NamedTemporaryFile("w", prefix="kinoray-", suffix=".log", delete=False) as file:
        traceback.print_exc(file=file)
    return file.name


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"kinoray {kinoray.__version__}")
        raise typer.Exit


@app.callback()
def options_of_all(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """What stands before a command."""


app.command("run")(cli_run.run_command)
app.command("sweep")(cli_sweep.sweep)
app.command("copy")(cli_copying.copy_command)
app.command("fetch")(cli_copying.fetch_command)
app.command("dashboard")(cli_export.dashboard_command)
app.command("extend")(cli_extend.extend_command)
app.command("check")(cli_check.check_command)
app.command("list")(cli_browse.list_command)
app.command("ui")(cli_browse.ui_command)
app.command("doctor")(cli_browse.doctor_command)
app.command("describe")(cli_describe.describe_command)
app.command("tag")(cli_about.tag_command)
app.command("note")(cli_about.note_command)
app.command("rm")(cli_removal.rm_command)
app.command("prune")(cli_removal.prune_command)
app.command("reproduce")(cli_reproduce.reproduce_command)
app.command("search")(cli_search.search_command)
app.command("status")(cli_status.status_command)
app.command("up")(cli_up_down.up_command)
app.command("down")(cli_up_down.down_command)
app.command("submit", context_settings=cli_jobs.WORDS_AS_THEY_ARE)(cli_jobs.submit_command)


@app.command()
def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help=WHICH_RUNS, autocompletion=completion.runs)],
    metric: Annotated[str | None, typer.Option(help="A score of the runs' protocol, as r5. [its main one]")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw the overall metrics: .pdf, .png or .svg.")
    ] = None,
    wide: Annotated[bool, typer.Option("--wide", help="All columns, however narrow the terminal.")] = False,
    output: Annotated[str, typer.Option("--format", help="table, markdown or latex.")] = "table",
    root: Runs = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """The papers' table: recall and forgetting per task and overall, means and intervals over seeds."""
    from kinoray.runs.selection import select_runs

    comparison = kinoray.compare(select_runs(runs, root), metric)
    if plot is not None:
        from kinoray.report.pictures import write_figure

        write_figure(comparison.plot(), plot)
        print(printable(f"Written {plot}."), file=sys.stderr)
    if as_json:
        printing.print_warnings(comparison)
        print(json.dumps(comparison.to_json(), indent=1))
    elif output == "table":
        printing.print_comparison(comparison, wide)
    elif output in ("markdown", "latex"):
        printing.print_warnings(comparison)
        print(comparison.markdown() if output == "markdown" else comparison.latex(), end="")
    else:
        raise UsageError(f"There is no format {output!r}. Use table, markdown or latex.")


@app.command()
def report(
    run: Annotated[str, typer.Argument(metavar="RUN", autocompletion=completion.runs)],
    root: Runs = None,
    debug: Debug = False,
) -> None:
    """One self-contained HTML page about a run, or about all seeds of a run."""
    from kinoray.runs.selection import select_run

    print(kinoray.write_report(select_run(run, root)))
