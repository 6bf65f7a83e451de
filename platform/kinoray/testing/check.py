"""`kinoray check` of a method, or of a backbone, protocol or stream of the user's own: which promises are tried."""

import inspect
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kinoray.backbones import find_backbone
from kinoray.backbones.backbone import Backbone
from kinoray.errors import UsageError
from kinoray.evaluation.protocol import BaseProtocol, load_protocol
from kinoray.execution.run_rank import settings_kept
from kinoray.source import OwnName, file_and_options, name_of_file, named, run_text
from kinoray.system.folders import expanded
from kinoray.testing import backbone, protocol, stream, suite
from kinoray.testing.suite import Outcome, deepest, outcome_of

SUITES: dict[str, tuple[Callable[..., None], ...]] = {
    "backbone": backbone.PROMISES,
    "protocol": protocol.PROMISES,
    "stream": stream.PROMISES,
}


def check(given: Any, device: str = "cpu") -> Iterator[Outcome]:
    """Try every promise on a method, backbone, protocol or stream; yields each as it is tried.

    A method takes about a minute (`testing.suite.check`).

    Args:
        given: A method as `kinoray.run` takes it, or a custom backbone, protocol or stream, a file or a class. What a
            file is, it says by what it defines.
        device: Where a method learns: cpu, or cuda for the GPU.

    Yields:
        What came of a promise.

    Raises:
        UsageError: Nothing is found or it does not load, or the device is not there.
    """
    kind = kind_of(given)
    if kind == "method":
        yield from suite.check(given, device)
        return
    suite.check_device(device)
    name = _loaded(given, kind)
    with tempfile.TemporaryDirectory(prefix="kinoray-check-") as folder, settings_kept():
        for promise in SUITES[kind]:
            yield outcome_of(promise, (name, Path(folder)), lambda error: deepest(error, {f"{name.source.name}.py"}))


def kind_of(given: Any) -> str:
    """What is to be checked: "method", "backbone", "protocol" or "stream". Raises: UsageError."""
    if isinstance(given, type):
        kinds = {"backbone": Backbone, "protocol": BaseProtocol}
        return next((kind for kind, base in kinds.items() if issubclass(given, base)), "method")
    parts = file_and_options(str(given)) if isinstance(given, str | Path) else None
    if parts is None or not expanded(parts[0]).is_file():
        return "method"
    own = name_of_file(str(given), "method")
    assert own is not None
    defined = vars(run_text(own.source))
    if "Method" in defined:
        return "method"
    load = defined.get("load")
    if callable(load) and len(inspect.signature(load).parameters) == 2:
        return "stream"
    classes = [v for v in defined.values() if isinstance(v, type) and v.__module__ == defined["__name__"]]
    if "BACKBONE" in defined or any(issubclass(cls, Backbone) for cls in classes):
        return "backbone"
    return "protocol" if any(issubclass(cls, BaseProtocol) for cls in classes) else "method"


def _loaded(given: Any, kind: str) -> OwnName:
    """The name of a user's own part that loads. Raises: UsageError where it does not."""
    if kind == "stream":
        name: str | None = name_of_file(str(given), kind)
    elif kind == "backbone":
        name = find_backbone(given)
    else:
        name = named(given, kind, BaseProtocol)
        load_protocol(name)
    if not isinstance(name, OwnName):
        raise UsageError(f"{given} is not a {kind} of your own. Give its file, such as ./my_{kind}.py.")
    return name
