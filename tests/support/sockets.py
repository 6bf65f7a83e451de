"""What a process listens on, also while it ends."""

import psutil


def listening(process: psutil.Process) -> list[tuple[str, int]]:
    """Address and port of each socket on which a process listens; none where it has ended meanwhile."""
    try:
        return [tuple(c.laddr) for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    except psutil.Error:
        return []


def family(process: psutil.Process) -> list[psutil.Process]:
    """A process, its children and theirs; none where it has ended meanwhile."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []
