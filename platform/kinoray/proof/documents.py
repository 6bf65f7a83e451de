"""What a bundle's JSON files say, checked as they are read: `bundle.json`, and of each run run.json and commit.json.

Bundles come from strangers. Types are exact, unknown keys are refused, and so are numbers that JSON has not.
"""

import json
import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from kinoray.config import digest_of
from kinoray.errors import UsageError
from kinoray.system.text import printable

T = TypeVar("T")

FORMAT = 1
MOST_JSON_BYTES = 8 << 20
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Number = Annotated[float, Field(allow_inf_nan=False)] | None
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, config=STRICT)
class Part:
    """A method, or the rule and the learner of one."""

    name: str
    digest: Digest
    own: bool
    """Whether it is the user's own code."""


@dataclass(frozen=True, config=STRICT)
class Request:
    """What a run was asked to do, with what, and where it was done."""

    method: str
    parts: list[Part]
    stream: str
    source: str
    """What the stream is loaded from by name; "" for own data."""
    protocol: str
    tasks: list[str]
    backbone: str
    """Without the place of own weights."""
    weights: str
    """Digest of its weights where they lie in files."""
    seed: Annotated[int, Field(ge=0)]
    joint: bool
    zero_shot: bool
    as_released: bool
    control: str
    overrides: dict[str, Any]
    settings: dict[str, Any]
    recipe: dict[str, Any]
    data: dict[str, Digest]
    """Digest of each task's manifest."""
    files: dict[str, str]
    """Digests of the videos by task, where they are known."""
    rendered: dict[str, str]
    """The same of videos that kinoray rendered: they are other files, of the same pictures, by another encoder."""
    reference: list[Digest]
    """Digests of the manifests of a reference set that the method asks for."""
    code: Digest
    """Of the engine's source."""
    versions: dict[str, str]
    threads: Annotated[int, Field(ge=1)]
    device: Literal["cpu", "cuda"]
    precision: str
    processor: str
    needs: list[str]
    """What of the user's own it needs to be trained again."""


@dataclass(frozen=True, config=STRICT)
class RunDocument:
    """run.json: the request, and what came of it."""

    request: Request
    chain: list[Digest]
    states: list[Digest]
    metrics: dict[str, Number]
    matrix: dict[str, list[list[Number]]]
    queries: list[int]
    seal: Digest
    """Of the request, the chain and the ranks (`seal_of`)."""
    task: Annotated[int, Field(ge=1, le=1000)]
    """The task that a verifier trains again, counted from 1 (`chosen_task`)."""


@dataclass(frozen=True, config=STRICT)
class Features:
    """A feature file that the task reads, beside its tensor in features.safetensors."""

    after_task: Annotated[int, Field(ge=0)]
    sha256: Digest
    ids: list[str]


@dataclass(frozen=True, config=STRICT)
class CommitDocument:
    """commit.json: the state before the task, beside the tensors."""

    stage: Annotated[int, Field(ge=1)]
    """Stages done."""
    leaves: dict[str, Digest]
    """Digests of all tensors of the state, also of those that are not in the bundle."""
    selections: list[list[int]]
    given: dict[str, int]
    """Weights that are as the backbone gave them, by the sum of their bits; they are not in the bundle."""
    features: dict[str, Features]


@dataclass(frozen=True, config=STRICT)
class Member:
    """A file of the bundle."""

    bytes: Annotated[int, Field(ge=0)]
    sha256: Digest


@dataclass(frozen=True, config=STRICT)
class BundleDocument:
    """bundle.json."""

    format: int
    made_by: str
    sections: dict[str, list[Annotated[str, Field(pattern=r"^[0-9]{1,3}$")]]]
    """Stream -> its runs, by their folders in `runs/`."""
    members: dict[str, Member]


def read_document(kind: type[T], data: bytes, where: str) -> tuple[T, Any]:
    """A JSON file as checked, and as plain values. Raises: UsageError in one line."""
    try:
        if len(data) > MOST_JSON_BYTES:
            raise ValueError(f"{len(data):,} bytes; the limit is {MOST_JSON_BYTES:,}")
        values = json.loads(data.decode("utf-8"), parse_constant=_refused, parse_float=_finite)
        return TypeAdapter(kind).validate_json(data), values
    except ValidationError as error:
        first = error.errors()[0]
        what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except (ValueError, RecursionError) as error:
        what = f"{type(error).__name__}: {error}"
    raise UsageError(f"{where} is not valid in a bundle ({printable(' '.join(what.split()))[:200]}).")


def _refused(word: str) -> float:
    raise ValueError(f"{word} is not a number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is not a finite number")
    return value


def seal_of(request: Any, chain: Sequence[str], ranks: Sequence[str]) -> str:
    """One digest of all that a run says of itself; the task that is trained again follows from it.

    Args:
        request: As plain values.
        chain: Of all stages.
        ranks: The digest of each stage's ranks (`training/chain.py`).
    """
    return digest_of([request, list(chain), list(ranks)])


def chosen_task(seal: str, stages: int) -> int:
    """The task that is trained again, counted from 1: who makes a bundle cannot choose it.

    t = 1 + SHA-256(request, chain, ranks) mod T
    """
    return 1 + int(seal, 16) % stages
