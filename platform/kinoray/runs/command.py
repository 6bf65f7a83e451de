"""What to type to make a run."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from kinoray.runs.result import Result
from kinoray.system.text import as_typed


def run_words(
    method: str, stream: str, backbone: str | None, settings: Mapping[str, Any], flags: Sequence[str] = ()
) -> list[str]:
    """The words of `kinoray run` up to its settings. backbone: None or "" leaves the stream's. flags: as --joint."""
    words = ["kinoray", "run", method, "--stream", stream, *(["--backbone", backbone] if backbone else []), *flags]
    return words + [word for name, value in settings.items() for word in ("--set", f"{name}={as_typed(value)}")]


def command_of(result: Result) -> str:
    """What to type to make the run elsewhere; "" where its method or stream is no name but a file or an object."""
    run = result.run
    source = run.get("method_source", {"kind": ""})
    stream = run.get("stream_source", {}).get("made_from")
    if not stream or any(part["kind"] != "kinoray" for part in source.get("parts", [source])):
        return ""
    flags = [f"--{name.replace('_', '-')}" for name in ("joint", "zero_shot", "as_released") if run.get(name)]
    words = run_words(run["method"], str(stream), run["backbone"], result.overrides, flags)
    return shlex.join([*words, "--seed", str(result.seed)])
