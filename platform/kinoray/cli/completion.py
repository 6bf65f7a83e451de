"""What the shell offers behind a half-typed word: methods, streams and runs by name. Imports no torch and no Ray."""

from pathlib import Path

import typer


def methods(incomplete: str) -> list[str]:
    """Methods that come with kinoray, and learners behind `rule:`."""
    from kinoray.runs.method_source import method_names

    rule, colon, start = incomplete.rpartition(":")
    return [f"{rule}{colon}{name}" for name in method_names() if name.startswith(start)]


def streams(incomplete: str) -> list[str]:
    """The streams by name."""
    from kinoray.streams import stream_families

    return [name for name in stream_families() if name.startswith(incomplete)]


def runs(context: typer.Context, incomplete: str) -> list[str]:
    """Folders of the runs folder, which `--runs` may have named."""
    from kinoray.disk.folders import runs_root

    given = context.params.get("root")
    home = runs_root(Path(given) if given else None)
    names = [folder.name for folder in sorted(home.glob("*/")) if not folder.name.startswith(".")]
    return [name for name in names if name.startswith(incomplete)]
