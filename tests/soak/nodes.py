"""A Ray of two nodes, both on this machine, of which one can be killed. Other Rays of the machine never hear of it."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import psutil
from titles import kind_of

CPUS = 3, 2
"""Of the head and of the other node: the head alone has one for each of two workers, and one to decode."""
STORE_BYTES = 150_000_000


@dataclass
class Nodes:
    """The head, and the node that may die."""

    cluster: Any
    other: Any

    @property
    def address(self) -> str:
        return self.cluster.address

    def work(self) -> list[psutil.Process]:
        """A run's workers, decoders and actors on the node that may die."""
        return _work_of(self.other)

    def work_of_head(self) -> list[psutil.Process]:
        """Those on the other one."""
        return _work_of(self.cluster.head_node)

    def kill(self) -> None:
        """SIGKILL of the node's raylet; its workers find out by themselves."""
        self.other.kill_raylet()


@contextmanager
def two_nodes(environment: dict[str, str], cpus: tuple[int, int] = CPUS) -> Iterator[Nodes]:
    """The head and another node; environment: of their processes, beside this one's."""
    import ray._private.utils as utils
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="kr", dir="/tmp")  # sockets need a short path
    alone = mock.patch.object(utils, "write_ray_address", lambda address, temp_dir=None: None)
    with alone, mock.patch.dict(os.environ, environment):
        head = {"num_cpus": cpus[0], "temp_dir": folder, "include_dashboard": False}
        place: dict[str, Any] = {"object_store_memory": STORE_BYTES}
        cluster = Cluster(initialize_head=True, head_node_args=head | place, shutdown_at_exit=False)
        try:
            yield Nodes(cluster, cluster.add_node(num_cpus=cpus[1], **place))
        finally:
            cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


def _work_of(node: Any) -> list[psutil.Process]:
    try:
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        return [process for process in raylet.children(recursive=True) if kind_of(process)]
    except psutil.NoSuchProcess:
        return []
