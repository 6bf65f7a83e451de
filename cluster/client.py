"""The way to a cluster: its dashboard's address, a client of Ray's Job API with limits, its errors in one line."""

import ipaddress
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kinoray.errors import KinorayError, UsageError
from kinoray.system.text import printable

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

LOCAL = "http://127.0.0.1:8265"
TIMEOUT_S = 30.0
"""Longest wait for one answer of the cluster."""


class Unreachable(UsageError):
    """No answer from the address: nothing was started there that the same command would not find."""


def dashboard(address: str | None) -> str:
    """The address of the cluster's dashboard, where jobs are sent. Raises: UsageError for one of another kind."""
    url = address or os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS") or LOCAL
    url = (url if "://" in url else f"http://{url}").rstrip("/")
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0):
            return url
    except ValueError:
        pass
    raise UsageError(f"{printable(url)} is not the address of a dashboard. Give one like http://head:8265.")


def is_loopback(url: str) -> bool:
    """Whether an address is on this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def connect(url: str) -> "JobSubmissionClient":
    """A client that waits for no answer longer than TIMEOUT_S. Ray reads the token. Raises: UsageError."""
    from ray.job_submission import JobSubmissionClient

    class Client(JobSubmissionClient):
        def _do_request(self, *words: Any, **options: Any) -> Any:
            return super()._do_request(*words, **{"timeout": TIMEOUT_S, **options})

    for name in ("ray.dashboard.modules.dashboard_sdk", "ray._private.runtime_env.packaging"):
        logging.getLogger(name).setLevel(logging.ERROR)  # each upload is a line
    with one_line_errors(url), _own_address():
        return Client(url)


@contextmanager
def _own_address() -> Iterator[None]:
    """Ray lets its variables win over the address that is given; here the address has been chosen."""
    hidden = {name: os.environ.pop(name, None) for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")}
    try:
        yield
    finally:
        os.environ.update({name: value for name, value in hidden.items() if value is not None})


@contextmanager
def one_line_errors(url: str) -> Iterator[None]:
    """Errors of the connection and of the cluster in one line. Raises: UsageError, Unreachable."""
    import ray.exceptions
    import requests

    try:
        yield
    except KinorayError:
        raise
    except ray.exceptions.AuthenticationError:
        raise UsageError(
            f"{url} does not accept the token. Set RAY_AUTH_MODE=token; for a cluster that you did not start on this "
            "machine, set also RAY_AUTH_TOKEN_PATH to a file with the cluster's token (or RAY_AUTH_TOKEN)."
        ) from None
    except (requests.JSONDecodeError, requests.HTTPError, KeyError):
        raise UsageError(f"{url} answers, but not as the dashboard of a Ray cluster does.") from None
    except (ConnectionError, requests.RequestException):
        raise Unreachable(f"{url} does not answer. Check that the cluster is up and reachable from here.") from None
    except RuntimeError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        kind = Unreachable if "status code 5" in lines[0] else UsageError
        raise kind(f"{url}: {printable(lines[0])} {printable(lines[-1]) if len(lines) > 1 else ''}".rstrip()) from None
