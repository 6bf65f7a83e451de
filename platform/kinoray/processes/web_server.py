"""A small web server of this machine, for pages that people look at while they work."""

import contextlib
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from kinoray.errors import UsageError

LOOPBACK = "127.0.0.1"
PORTS_TRIED = 50


class WebServer(ThreadingMixIn, WSGIServer):
    """Answers each request in a thread: a page asks for many things at once, and some take seconds to compute."""

    daemon_threads = True


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


def listen(host: str, first: int, port: int | None, option: str) -> WebServer:
    """A server on a port, or, where none is given, on the first free one from `first` on.

    option: how the user names another port, as "kinoray ui --port". Raises: UsageError where none can be had.
    """
    for number in range(first, first + PORTS_TRIED) if port is None else (port,):
        with contextlib.suppress(OSError):
            return WebServer((host, number), _Silent)
    taken = f"Port {port} is" if port is not None else f"The ports {first} to {first + PORTS_TRIED - 1} are all"
    raise UsageError(f"{taken} taken or not allowed on {host}. Give another one with `{option}`.")
