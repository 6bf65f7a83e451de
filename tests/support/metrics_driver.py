"""A driver in a process of its own, whose Ray has an agent that serves metrics; the tests' own Ray has none."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

START = """
import sys
import kinoray
import ray

ray.init(address="local", num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False,
         namespace="kinoray", _system_config={"metrics_report_interval_ms": 500})
print(ray.nodes()[0]["MetricsExportPort"], flush=True)
"""


class MetricsDriver:
    """What a test says to the driver's code, and hears of it, line by line."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None and process.stdout is not None
        self.stdin, self.stdout = process.stdin, process.stdout
        self.address = f"127.0.0.1:{self.hear()}"
        """Where its Ray serves metrics."""

    def hear(self) -> str:
        """The next line that it prints."""
        return self.stdout.readline().strip()

    def go_on(self) -> None:
        """An empty line, for which it waits."""
        print(file=self.stdin, flush=True)


@contextmanager
def metrics_driver(code: str, *words: str) -> Iterator[MetricsDriver]:
    """Run code in it once Ray is there; it has to end well."""
    command = [sys.executable, "-c", START + code, *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield MetricsDriver(process)
    assert process.returncode == 0
