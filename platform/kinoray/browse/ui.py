"""`kinoray ui`: one live page over all runs of a folder, served on this machine."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from kinoray.browse.run_table import PAGE
from kinoray.disk.folders import runs_root
from kinoray.errors import UsageError
from kinoray.processes.web_server import LOOPBACK, listen

if TYPE_CHECKING:
    from flask import Flask

PORT = 8050
"""Dash's own; where it is taken, the next free one."""
REPORT_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:",
    "X-Content-Type-Options": "nosniff",
}
"""A report has no script; should text from data ever become one, it does not run."""


def serve(runs: str | Path | None, port: int | None, host: str, say: Callable[[str], None]) -> None:
    """Serve the page until interrupted; says its address.

    port: None takes the first free one from 8050 on. host: the address to listen on. Raises: UsageError where Dash is
    not installed, there is no such folder, or the port is taken.
    """
    root = runs_root(runs)
    app = make_app(root, host)
    with listen(host, PORT, port, "kinoray ui --port") as server:
        server.set_app(app)
        say(f"http://{host}:{server.server_port}/")
        server.serve_forever()


def make_app(root: Path, host: str = LOOPBACK) -> "Flask":
    """The page, and the reports of the runs folder, as a WSGI application.

    Raises: UsageError where Dash is not installed or there is no such folder.
    """
    if find_spec("dash") is None or find_spec("dash_ag_grid") is None:
        raise UsageError("Dash is not installed. Run: pip install 'kinoray[ui]'")
    if not root.is_dir():
        raise UsageError(f"There is no folder {root}. Name the folder of all runs with --runs.")
    from flask import Response, abort

    from kinoray.browse.ui_page import make_page

    flask = make_page(root.absolute()).server
    if host == LOOPBACK:  # another site's name that leads here is refused: it could read the answers
        flask.config["TRUSTED_HOSTS"] = [LOOPBACK, "localhost"]

    @flask.get("/pages/<path:name>")
    def report(name: str) -> Response:
        file = report_file(root, name)
        if file is None:
            abort(404)
        return Response(file.read_bytes(), mimetype="text/html", headers=REPORT_HEADERS)

    return flask


def report_file(root: Path, name: str) -> Path | None:
    """A report by its path in the runs folder; None for any other file, and for what a link leads out of it."""
    try:
        file = (root / name).resolve()
        inside = file.is_relative_to(root.resolve()) and file.is_file()
    except (OSError, ValueError):  # a name too long, or with a null character
        return None
    return file if inside and file.name == PAGE else None
