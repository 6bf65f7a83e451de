"""Published data of which clips are missing measure no paper, unless somebody asks for it."""

from kinoray.datasets.prepared import shortfalls
from kinoray.errors import UsageError
from kinoray.papers.entries import Entry, TableEntry, filled
from kinoray.streams import Stream, is_published, load_stream


def refuse_partial(name: str, entry: Entry, stream: str | Stream) -> None:
    """Raises: UsageError where a stream, or one that its name stands for, is over published sets that are partial."""
    values = list(entry.across.values()) if isinstance(entry, TableEntry) else []
    names = [filled(stream, value) for value in values or [""]] if isinstance(stream, str) else []
    streams = [load_stream(name) for name in names if is_published(name)] if isinstance(stream, str) else [stream]
    sets = [task.data_set for s in streams for task in (*s.tasks, *s.downstream) if task.data_set]
    if lines := shortfalls(dict.fromkeys(sets)).partial:
        raise UsageError(
            f"{name} measures published data, but {' '.join(lines)} Complete them (`kinoray data prepare` lists what "
            "is missing), or give --partial to measure what is there."
        )
