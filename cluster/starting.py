"""Files that start a cluster, written out to be changed and kept: for `ray up`, Kubernetes, SLURM, a container; and
those that watch it, Prometheus and Grafana."""

from dataclasses import dataclass
from pathlib import Path

from kinoray.errors import UsageError

HERE = Path(__file__).parent
MONITORING = (
    "compose.yaml",
    "prometheus.yml",
    "alerts.yml",
    "grafana-datasource.yaml",
    "grafana-dashboards.yaml",
    "grafana-kinoray.json",
)


@dataclass(frozen=True)
class Kind:
    """What `kinoray cluster init` can write."""

    name: str
    files: tuple[Path, ...]
    """The first one's first comment says what they are for."""

    @property
    def about(self) -> str:
        """What the files are for, in one line."""
        lines = self.files[0].read_text(encoding="utf-8").splitlines()
        return next(line for line in lines if line.startswith("# "))[2:]


KINDS = {
    kind.name: kind
    for kind in (
        Kind("ssh", (HERE / "templates" / "ray-up-ssh.yaml",)),
        Kind("aws", (HERE / "templates" / "ray-up-aws.yaml",)),
        Kind("kuberay", (HERE / "templates" / "kuberay-cluster.yaml",)),
        Kind("kuberay-job", (HERE / "templates" / "kuberay-job.yaml",)),
        Kind("slurm", (HERE / "templates" / "slurm.sh",)),
        Kind("container", (HERE / "templates" / "Dockerfile",)),
        Kind("monitoring", tuple(HERE / "monitoring" / name for name in MONITORING)),
    )
}


def write_cluster_files(kind: str, folder: Path) -> list[Path]:
    """Write a kind's files into a folder, which is made where it is missing; nothing that exists is overwritten.

    Returns: the files.
    Raises: UsageError for a kind that there is not, or a file that exists.
    """
    if kind not in KINDS:
        raise UsageError(f"There are no files for {kind!r}. Choose one of {', '.join(KINDS)}.")
    files = {folder / source.name: source for source in KINDS[kind].files}
    for file in files:
        if file.exists():
            raise UsageError(f"{file} exists already; nothing was written. Choose another folder or move it away.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, source in files.items():
            file.write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"Cannot write {folder}: {error.strerror}. Choose another folder.") from None
    return list(files)
