"""Send a command to a Ray cluster and keep hold of it: `kinoray.submit`, over Ray's Job API.

The job's name is the hash of all that is run (words, files, package, environment), so the same command finds the job
that is there: one that runs or has finished is not run twice, one that failed or was stopped goes on as its next
attempt. The cluster owns the job: whoever submitted it may be killed, lose the network, or ask from elsewhere.
"""

import json
import os
import re
import shlex
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinoray.cluster.client import TIMEOUT_S, Unreachable, connect, dashboard, is_loopback, one_line_errors
from kinoray.cluster.install import pip
from kinoray.cluster.results import IN_JOB, open_result
from kinoray.cluster.ship import Shipment, stage
from kinoray.errors import STOPPED, KinorayError, UsageError, unknown
from kinoray.system.text import printable, printer

if TYPE_CHECKING:
    import pandas as pd
    from ray.job_submission import JobDetails, JobSubmissionClient

    from kinoray.runs.result import Result, Results
    from kinoray.sweeps.result import SweepResult

LOST_S = 120.0
"""How long a job is followed without an answer."""
STOP_S = 60
"""Time a stopped job has to commit its state; Ray's own is 3 s."""
POLL_S = 1.0
STATES = {"SUCCEEDED": "finished"}
RAYS_OWN = re.compile(r"Running entrypoint for job |\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+\sINFO ")
"""Lines that Ray writes into a job's log."""


class Lost(KinorayError):
    """The cluster stopped answering while a job was followed; the job knows nothing of it."""

    exit_code = STOPPED


@dataclass(frozen=True)
class Job:
    """A submitted command. Every method asks the cluster anew."""

    id: str
    address: str
    client: "JobSubmissionClient" = field(repr=False, compare=False)

    def info(self) -> dict[str, Any]:
        """Everything known in one row: id, state, command, times, exit code, error, where the results are."""
        with one_line_errors(self.address):
            return describe(self._details())

    def status(self) -> str:
        """pending, running, finished, stopped (can go on) or failed."""
        return self.info()["state"]

    def logs(self) -> str:
        """What the job has printed so far, Ray's own lines left out."""
        return "".join(f"{line}\n" for line in self._lines())

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the end; returns the exit code, 75 for a stopped job. Raises: TimeoutError, Lost."""
        return self._follow_until_done(lambda: None, timeout_s)

    def follow(self, say: Callable[[str], None] = print) -> int:
        """Pass on every line of the job until it ends; returns its exit code. Raises: Lost."""
        lines_shown = 0

        def catch_up() -> None:
            nonlocal lines_shown
            lines = self._lines()
            for line in lines[lines_shown:]:
                say(line)
            lines_shown = max(lines_shown, len(lines))

        return self._follow_until_done(catch_up, None)

    def stop(self) -> str:
        """Ask the job to commit its state and end; waits for it and returns the state in which it ended."""
        with one_line_errors(self.address):
            self._details()  # an unknown job has a better error than this call
            self.client.stop_job(self.id)
        self.wait(STOP_S + TIMEOUT_S)
        return self.status()

    def result(self) -> "Result | Results | SweepResult | pd.DataFrame":
        """The runs, the sweep or the table of a job that has ended, where the folders can be reached from here.

        Raises: UsageError where there is nothing (yet), or not here.
        """
        info = self.info()
        if info["exit_code"] is None:
            raise UsageError(f"{self.id} has no result yet: it is {info['state']}.")
        result = open_result(self._lines(), self.id)
        if result is None:
            see = f"kinoray jobs logs {self.id} --address {self.address}"
            raise UsageError(f"{self.id} {info['state']} without a result{_because(info)}. See its output: `{see}`.")
        return result

    def _details(self) -> "JobDetails":
        try:
            return self.client.get_job_info(self.id)
        except RuntimeError as error:
            if "404" not in str(error):
                raise
            known = [job.submission_id or "" for job in jobs_of(self.client)]
            hint = "" if known else "The cluster has no kinoray jobs."
            raise unknown("job", self.id, known, hint) from None

    def _lines(self) -> list[str]:
        """Lines of the log that are complete, safe to print."""
        with one_line_errors(self.address):
            self._details()
            log = self.client.get_job_logs(self.id)
        return [printable(line) for line in log.split("\n")[:-1] if not RAYS_OWN.match(line)]

    def _follow_until_done(self, each_time: Callable[[], None], timeout_s: float | None) -> int:
        start = answered = time.monotonic()
        while True:
            try:
                info = self.info()  # before the log, which is whole once the job has ended
                each_time()
                if info["exit_code"] is not None:
                    return info["exit_code"]
                answered = time.monotonic()
            except Unreachable as error:
                if time.monotonic() - answered > LOST_S:
                    raise Lost(f"{error} The job {self.id} continues there.") from None
            if timeout_s is not None and time.monotonic() - start > timeout_s:
                raise TimeoutError(f"{self.id} did not end within {timeout_s:g} s; it was not stopped.")
            time.sleep(POLL_S)


def submit(
    words: str | Sequence[str],
    *,
    address: str | None = None,
    env: Mapping[str, str] | None = None,
    again: bool = False,
    without_token: bool = False,
    install: bool = False,
    quiet: bool = False,
) -> Job:
    """Run a kinoray command on a cluster: `submit("run bmu_moco --seeds 3", address="http://head:8265")`.

    Args:
        words: The command as typed after `kinoray`, in one string or as a list. Files and folders that it names by
            relative paths travel with it.
        address: The cluster's dashboard [RAY_API_SERVER_ADDRESS, RAY_ADDRESS, else this machine].
        env: Variables of the job.
        again: Whether what has finished runs anew.
        without_token: Whether code is sent beyond this machine without RAY_AUTH_MODE=token.
        install: Whether pip brings the libraries that the image lacks, for this job; torch and Ray stay.
        quiet: Whether nothing is said of it.

    Returns:
        The job, which may be one that is there.

    Raises:
        UsageError: In one line, with nothing started.
    """
    url = dashboard(address)
    is_near = is_loopback(url)
    if not is_near and os.environ.get("RAY_AUTH_MODE") != "token" and not without_token:
        raise UsageError(
            f"{url} is not on this machine and RAY_AUTH_MODE is not token: anyone who reaches such a cluster can run "
            "code on it. Start it with RAY_AUTH_MODE=token and set the same here, with its token in "
            "RAY_AUTH_TOKEN_PATH; or add --without-token."
        )
    with tempfile.TemporaryDirectory(prefix="kinoray-") as folder:
        shipment = prepare(words, Path(folder), url, env or {}, install)
        client = connect(url)
        with one_line_errors(url):
            return _send(client, url, shipment, again, printer(quiet))


def prepare(
    words: str | Sequence[str], folder: Path, url: str, env: Mapping[str, str], install: bool = False
) -> Shipment:
    """What `submit` would send, staged in `folder`."""
    listed = shlex.split(words) if isinstance(words, str) else list(words)
    runs = os.environ.get("KINORAY_RUNS") or ("runs" if is_loopback(url) else None)
    return stage(listed, folder, env, runs, install)


def _send(
    client: "JobSubmissionClient",
    url: str,
    shipment: Shipment,
    again: bool,
    say: Callable[[str], None],
) -> Job:
    """Submit, unless the job is there. Two submitters at once: the cluster takes a name once, the other follows.

    A command that leaves no result looks at what is there now: it is run again though it has finished.
    """
    again = again or not shipment.runs
    while True:
        past = attempts(shipment.id, {str(job.submission_id): describe(job) for job in jobs_of(client)})
        if past:
            last = past[-1]
            if last["state"] in ("pending", "running") or (last["state"] == "finished" and not again):
                if last["state"] == "finished":
                    say(f"{last['id']} has finished. Add --again to run it again.")
                else:
                    say(f"{last['id']} is {last['state']}; the same command is not run twice.")
                return Job(last["id"], url, client)
            say(f"{last['id']} {last['state']}{_because(last)}; this is its next attempt.")
        name = f"{shipment.id}-{len(past) + 1}" if past else shipment.id
        try:
            client.submit_job(
                entrypoint=shipment.entrypoint,
                submission_id=name,
                runtime_env=runtime_env(shipment),
                metadata={
                    "job_name": name,
                    "kinoray": version("kinoray"),
                    "words": json.dumps(shipment.words),
                    "runs": shipment.runs,
                },
            )
        except RuntimeError as error:
            if "already exists" not in str(error):
                raise
            continue
        say(f"Submitted {name}; " + (f"its results: {shipment.runs}" if shipment.runs else "it prints its results"))
        return Job(name, url, client)


def runtime_env(shipment: Shipment) -> dict[str, Any]:
    """The environment of a job, as Ray takes it."""
    made: dict[str, Any] = {
        "working_dir": str(shipment.work),
        "py_modules": [str(folder) for folder in shipment.modules],
        "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_S), IN_JOB: "1", **shipment.environment},
    }
    return made | ({"pip": pip(shipment.libraries)} if shipment.libraries else {})


def attempts(base: str, known: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a job's attempts in order: `base`, `base-2`, `base-3`..."""
    numbers = iter(range(1, len(known) + 2))
    names = (base if n == 1 else f"{base}-{n}" for n in numbers)
    rows = []
    for name in names:
        if name not in known:
            break
        rows.append(known[name])
    return rows


def find_job(id: str, address: str | None = None) -> Job:
    """The handle of a job that is there. Raises: UsageError for one that is not."""
    url = dashboard(address)
    job = Job(id, url, connect(url))
    if not re.fullmatch(r"[\w.-]+", id) or id in (".", ".."):  # it becomes part of a URL
        raise unknown("job", id, [row["id"] for row in list_jobs(address)])
    job.info()
    return job


def list_jobs(address: str | None = None) -> list[dict[str, Any]]:
    """All kinoray jobs that the cluster remembers, oldest first.

    Args:
        address: As of `submit`.
    """
    url = dashboard(address)
    client = connect(url)
    with one_line_errors(url):
        return [describe(job) for job in jobs_of(client)]


def jobs_of(client: "JobSubmissionClient") -> "list[JobDetails]":
    ours = [job for job in client.list_jobs() if job.submission_id and "kinoray" in (job.metadata or {})]
    return sorted(ours, key=lambda job: (job.start_time or 0, str(job.submission_id)))


def describe(job: "JobDetails") -> dict[str, Any]:
    """A job as one row; times are UTC."""
    state = STATES.get(job.status.value, job.status.value.lower())
    code = job.driver_exit_code
    if state == "finished":
        code = 0
    elif state == "stopped":
        code = STOPPED
    elif state == "failed":
        code = 1 if code is None else 128 - code if code < 0 else code
    messages = [line for line in (job.message or "").splitlines() if line.strip()]
    error = None
    if state == "failed" and messages:
        # kinoray's own error is the last line of its log; Ray's begins with what happened
        error = printable(messages[0] if job.driver_exit_code is None else messages[-1])
    metadata = job.metadata or {}
    return {
        "id": job.submission_id,
        "state": state,
        "command": "kinoray " + shlex.join(json.loads(metadata.get("words", "[]"))),
        "started": _utc(job.start_time),
        "ended": _utc(job.end_time),
        "exit_code": code if state in ("finished", "stopped", "failed") else None,
        "error": error,
        "runs": metadata.get("runs") or None,
    }


def _utc(milliseconds: int | None) -> str | None:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if milliseconds else None


def _because(info: Mapping[str, Any]) -> str:
    return f" ({info['error']})" if info["error"] else ""
