"""The command line. Every command is a public function of `kinoray` with the same words; errors end here, in one place,
with the exit codes of `kinoray.errors`.
"""

import _thread
import atexit
import errno
import gc
import os
import signal
import sys
import tempfile
import threading
import traceback
from typing import Annotated

import typer

import kinoray
from kinoray.cli import browse, check, data, jobs, reproduce, results, run, sweep
from kinoray.errors import FAILED, GOES_ON, INTERRUPTED, TERMINATED, WRONG, KinorayError
from kinoray.system.text import one_line, printable

app = typer.Typer(
    help="Continual video-language learning on Ray.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(jobs.jobs_app, name="jobs")
app.add_typer(jobs.cluster_app, name="cluster")
app.add_typer(data.data_app, name="data")
app.add_typer(results.export_app, name="export")
app.add_typer(check.new_app, name="new")

NO_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
"""Of a file system: no mistake of a program."""


def main() -> None:
    """Run the command line; the only place where errors become lines and exit codes."""
    signal.signal(signal.SIGTERM, _terminated)  # runs have their own handler
    # At its end Python looks through all that torch made for what nobody uses any more: half a second.
    atexit.register(gc.freeze)
    sys.unraisablehook = _interrupt_again
    sys.argv[1:] = map(_with_home, sys.argv[1:])
    try:
        app()
    except KinorayError as error:
        _fail(f"{type(error).__name__}: {error}", error.exit_code)
    except SystemExit as left:
        if left.code == INTERRUPTED:  # typer's answer to Ctrl-C says nothing
            _fail(f"Interrupted. {GOES_ON}", INTERRUPTED)
        if left.code == TERMINATED:
            _fail(f"Terminated. {GOES_ON}", TERMINATED)
        raise
    except BrokenPipeError:  # the reader (`| head`) has gone
        sys.stderr.close()
        sys.exit(FAILED)
    except Exception as error:  # a bug, ours or a method's: the line says where the rest is
        if isinstance(error, OSError) and error.errno in NO_PLACE and error.filename is not None:
            _fail(f"{error.filename}: {error.strerror}. Give another place, make room, or change permissions.", WRONG)
        _fail(f"{type(error).__name__}: {one_line(error)} (traceback in {_write_traceback()}, or use --debug)", FAILED)


def _terminated(*_: object) -> None:
    """End with the code of the signal. `timeout` sends it twice; the second would fall into the end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(TERMINATED)


def _with_home(word: str) -> str:
    """A word of the command line, `--runs=~/x` as the shell gives `--runs ~/x`."""
    option, equals, value = word.partition("=")
    return f"{option}={os.path.expanduser(value)}" if option.startswith("--") and equals else word


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


app.command("run")(run.run_command)
app.command("sweep")(sweep.sweep)
app.command("extend")(run.extend_command)
app.command("reproduce")(reproduce.reproduce_command)
app.command("status")(browse.status_command)
app.command("compare")(results.compare_command)
app.command("report")(results.report_command)
app.command("search")(results.search_command)
app.command("list")(browse.list_command)
app.command("describe")(browse.describe_command)
app.command("check")(check.check_command)
app.command("bundle")(results.bundle_command)
app.command("verify")(results.verify_command)
app.command("doctor")(browse.doctor_command)
app.command("submit", context_settings=jobs.WORDS_AS_THEY_ARE)(jobs.submit_command)
