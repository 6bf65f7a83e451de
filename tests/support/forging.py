"""What a forger does to a bundle: changes a part of it, and, with more care, all digests that follow from it."""

import hashlib
import io
import json
import random
import struct
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load, save

from kinoray.evaluation.protocol import load_protocol
from kinoray.proof.archive import BUNDLE, read_ranks, write_ranks
from kinoray.proof.cells import cells_of
from kinoray.proof.documents import chosen_task, seal_of
from kinoray.runs.write_result import numbers_of
from kinoray.training.chain import Link, chain_of, leaves_of, state_link

Files = dict[str, bytes]


def unpacked(bundle: Path) -> Files:
    """The members of a bundle by name."""
    with zipfile.ZipFile(bundle) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(files: Files, path: Path, listed: bool = False, **kinds: int) -> Path:
    """A bundle of these members. listed: with a bundle.json that lists them as they are. kinds: by name."""
    if listed:
        head = json.loads(files[BUNDLE])
        members = {name: data for name, data in files.items() if name != BUNDLE}
        head["members"] = {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in members.items()
        }
        files = files | {BUNDLE: json.dumps(head).encode()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, kinds.get(name, zipfile.ZIP_STORED))
    return path


def document(files: Files, name: str = "runs/0/run.json") -> Any:
    """A JSON member."""
    return json.loads(files[name])


def with_document(files: Files, change: Callable[[Any], object], name: str = "runs/0/run.json") -> Files:
    """With a JSON member changed."""
    values = document(files, name)
    change(values)
    return files | {name: json.dumps(values).encode()}


def with_ranks(files: Files, change: Callable[[dict[str, list[Any]]], object]) -> Files:
    """With columns of the ranks changed."""
    name = "runs/0/ranks.parquet"
    columns = pq.read_table(pa.BufferReader(files[name])).to_pydict()
    change(columns)
    return files | {name: write_ranks(columns)}


def with_bit(files: Files, rng: random.Random, name: str = "runs/0/method.safetensors") -> Files:
    """With a bit of a tensor flipped; the file is sound."""
    tensors = load(files[name])
    place = rng.choice([key for key, value in tensors.items() if value.numel()])
    flat = tensors[place].contiguous().reshape(-1).view(torch.uint8)
    flat[rng.randrange(len(flat))] ^= 1 << rng.randrange(8)
    return files | {name: save(tensors)}


def recomputed(files: Files) -> Files:
    """With every number and digest that follows from ranks, states and tensors made anew: consistent in itself."""
    files = dict(files)
    values = document(files)
    if "runs/0/commit.json" in files:
        commit = document(files, "runs/0/commit.json")
        parts = ("method", "optimizer")
        names = {part: f"runs/0/{part}.safetensors" for part in parts}
        commit["leaves"] |= leaves_of({part: load(files[name]) for part, name in names.items() if name in files})
        features = {name: of["sha256"] for name, of in commit["features"].items()}
        values["states"][commit["stage"] - 1] = state_link(commit["leaves"], commit["selections"], features)
        files["runs/0/commit.json"] = json.dumps(commit).encode()
    request = values["request"]
    protocol = load_protocol(request["protocol"])
    stages = protocol.stages(len(request["tasks"]), request["joint"], request["zero_shot"])
    table = read_ranks(files["runs/0/ranks.parquet"], "here")
    tested = cells_of(table, len(request["tasks"]), "here")
    links = [Link(*pair) for pair in zip(values["states"], tested.links(stages), strict=True)]
    values |= numbers_of(protocol, tested.cells, len(request["tasks"])) | {"chain": chain_of(links)}
    values["seal"] = seal_of(request, values["chain"], [link.ranks for link in links])
    values["task"] = chosen_task(values["seal"], len(stages))
    return files | {"runs/0/run.json": json.dumps(values).encode()}


def sealed_for(files: Files, task: int) -> Files:
    """A bundle that is as good, whose seal chooses a task: it knows a digest of files that nobody asks for."""
    for number in range(1000):
        files = with_document(files, lambda values, n=number: values["request"]["files"].update(unasked=str(n)))
        if document(files := recomputed(files))["task"] == task:
            return files
    raise AssertionError("a thousand seals choose other tasks")


def worse_rank(columns: dict[str, list[Any]], rng: random.Random, row: int | None = None) -> None:
    """Another rank for one query, of a row of the result matrix if one is named."""
    places = [place for place, of in enumerate(columns["after_task"]) if row in (None, of)]
    place = rng.choice(places)
    before = columns["rank"][place]
    columns["rank"][place] = rng.choice([r for r in range(columns["gallery"][place]) if r != before] or [before + 0.5])
    columns["ties"][place] = 0


def forged_at_task(files: Files, rng: random.Random) -> Files:
    """A fault in the very task that will be trained again, with all digests made anew: the forger tries until the
    task that the digests choose is that of the state in the bundle."""
    task = document(files)["task"]
    while True:
        if rng.random() < 0.5:
            other = with_ranks(files, lambda columns: worse_rank(columns, rng, row=task - 1))
        else:
            other = with_document(
                files, lambda values: values["states"].__setitem__(task - 1, f"{rng.getrandbits(256):064x}")
            )
        other = recomputed(other)
        if document(other)["task"] == task:
            return other


@dataclass(frozen=True)
class Tampering:
    """A change of a bundle that is not made good elsewhere."""

    name: str
    change: Callable[[Files, random.Random], Files]
    listed: bool = True
    """Whether bundle.json lists the changed members as they are."""


def _swapped(files: Files, rng: random.Random) -> Files:
    first, second = rng.sample(sorted(name for name in files if name != BUNDLE), 2)
    return files | {first: files[second], second: files[first]}


def _cut(files: Files, rng: random.Random) -> Files:
    name = rng.choice(sorted(name for name in files if name != BUNDLE))
    return files | {name: files[name][: rng.randrange(len(files[name]))]}


def _removed(files: Files, rng: random.Random) -> Files:
    lost = rng.choice(sorted(name for name in files if name != BUNDLE))
    return {name: data for name, data in files.items() if name != lost}


def _digest(files: Files, rng: random.Random) -> Files:
    def change(values: Any) -> None:
        kind = rng.choice(["chain", "states"])
        values[kind][rng.randrange(len(values[kind]))] = f"{rng.getrandbits(256):064x}"

    return with_document(files, change)


def _number(files: Files, rng: random.Random) -> Files:
    def change(values: Any) -> None:
        name = rng.choice([name for name, value in values["metrics"].items() if value is not None])
        values["metrics"][name] += rng.choice([-1, 0.01, 5])

    return with_document(files, change)


def _cell(files: Files, rng: random.Random) -> Files:
    def change(values: Any) -> None:
        rows = rng.choice(list(values["matrix"].values()))
        rows[-1][rng.randrange(len(rows))] = 99.0

    return with_document(files, change)


def _setting(files: Files, rng: random.Random) -> Files:
    def change(values: Any) -> None:
        part = values["request"][rng.choice(["settings", "recipe"])]
        name = rng.choice([n for n, v in part.items() if isinstance(v, float) and not isinstance(v, bool)])
        part[name] = part[name] / 2 + 0.01

    return with_document(files, change)


def _fact(files: Files, rng: random.Random) -> Files:
    def change(values: Any) -> None:
        request = values["request"]
        name = rng.choice(["seed", "method", "backbone", "joint", "tasks", "code", "threads"])
        value = request[name]
        others = {
            "method": "avg_pool",
            "backbone": "tiny-clip",
            "code": "0" * 64,
            "tasks": value and list(reversed(request["tasks"])),
        }
        request[name] = others.get(name, value + 1 if name in ("seed", "threads") else not value)

    return with_document(files, change)


def _leaf(files: Files, rng: random.Random) -> Files:
    name = "runs/0/commit.json"
    if name not in files:
        return _digest(files, rng)

    def change(values: Any) -> None:
        values["leaves"][rng.choice(list(values["leaves"]))] = f"{rng.getrandbits(256):064x}"

    return with_document(files, change, name)


def _rank(files: Files, rng: random.Random) -> Files:
    return with_ranks(files, lambda columns: worse_rank(columns, rng))


def _weight(files: Files, rng: random.Random) -> Files:
    return with_bit(files, rng) if "runs/0/method.safetensors" in files else _rank(files, rng)


TAMPERINGS = [
    Tampering("rank", _rank),
    Tampering("rank, not listed", _rank, listed=False),
    Tampering("weight bit", _weight),
    Tampering("setting", _setting),
    Tampering("fact", _fact),
    Tampering("digest", _digest),
    Tampering("metric", _number),
    Tampering("cell", _cell),
    Tampering("leaf", _leaf),
    Tampering("swapped", _swapped, listed=False),
    Tampering("swapped and listed", _swapped),
    Tampering("cut", _cut, listed=False),
    Tampering("removed", _removed, listed=False),
    Tampering("removed and not listed", _removed),
]


# Hostile files


def hostile(files: Files, folder: Path) -> Iterable[tuple[str, Path]]:
    """Files that no reader may do more than refuse: name and path."""
    for number, (name, data) in enumerate(_hostile_bytes(files).items()):
        path = folder / f"hostile-{number}.zip"
        path.write_bytes(data)
        yield name, path


def _zip(members: Iterable[tuple[zipfile.ZipInfo | str, bytes]], kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", kind) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


def _kind(name: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


def _parquet(columns: dict[str, Any]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


def _declaring(data: bytes, rows: int) -> bytes:
    """A Parquet file whose table of contents says that it has so many rows: each place of its number is replaced."""
    length = struct.unpack("<I", data[-8:-4])[0]
    footer = data[-8 - length : -8]
    true = pq.ParquetFile(pa.BufferReader(data)).metadata.num_rows
    changed = footer.replace(b"\x16" + _varint(true), b"\x16" + _varint(rows))
    return data[: -8 - length] + changed + struct.pack("<I", len(changed)) + data[-4:]


def _varint(value: int) -> bytes:
    zigzag, out = value << 1, bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*out, zigzag])


def _hostile_bytes(files: Files) -> dict[str, bytes]:
    """By name."""
    ranks = pq.read_table(pa.BufferReader(files["runs/0/ranks.parquet"])).to_pydict()
    run, parquet, weights = "runs/0/run.json", "runs/0/ranks.parquet", "runs/0/method.safetensors"

    def replaced(name: str, data: bytes) -> bytes:
        return _listed(files | {name: data})

    def run_with(**changes: Any) -> bytes:
        return replaced(run, json.dumps(document(files) | changes).encode())

    def request_with(**changes: Any) -> bytes:
        return run_with(request=document(files)["request"] | changes)

    def ranks_with(**columns: Any) -> bytes:
        return replaced(parquet, _parquet(ranks | columns))

    def head_with(**changes: Any) -> bytes:
        return _zip((files | {BUNDLE: json.dumps(document(files, BUNDLE) | changes).encode()}).items())

    rows = len(ranks["rank"])
    many = 1 << 21
    whole = _zip(files.items())
    huge = struct.pack("<Q", 1 << 60)
    return {
        "empty": b"",
        "no zip": b"kinoray" * 100,
        "cut zip": whole[: len(whole) // 2],
        "torn end": whole[:-10],
        "random behind the magic": b"PK\x03\x04" + random.Random(0).randbytes(4000),
        "no bundle.json": _zip((name, data) for name, data in files.items() if name != BUNDLE),
        "upward path": _zip([*files.items(), ("../evil", b"x")]),
        "upward path in runs": _zip([*files.items(), ("runs/../../evil", b"x")]),
        "absolute path": _zip([*files.items(), ("/tmp/evil", b"x")]),
        "drive path": _zip([*files.items(), ("C:\\evil", b"x")]),
        "name with NUL and escape": _zip([*files.items(), ("runs/0/\x1b[31m", b"x")]),
        "pickle beside": _zip([*files.items(), ("runs/0/method.pkl", b"cos\nsystem\n(S'true'\ntR.")]),
        "source beside": _zip([*files.items(), ("runs/0/method.py", b"raise SystemExit(0)")]),
        "symbolic link": _zip([*files.items(), (_kind("runs/1/run.json", 0o120777), b"/etc/passwd")]),
        "link in a member's place": _zip([(_kind(run, 0o120777), b"/etc/passwd"), *_without(files, run)]),
        "device": _zip([*files.items(), (_kind("runs/1/run.json", 0o020666), b"")]),
        "folder": _zip([*files.items(), ("runs/0/", b"")]),
        "bomb": _zip([*files.items(), ("runs/1/run.json", bytes(9 << 20))]),
        "bomb of many": _zip([*files.items(), *((f"runs/{n}/run.json", bytes(1 << 20)) for n in range(1, 20))]),
        "bomb of JSON": _zip([(BUNDLE, b" " * (9 << 20) + b"{}"), *_without(files, BUNDLE)]),
        "more than 64 MB": _zip([("runs/1/run.json", bytes(65 << 20))], zipfile.ZIP_STORED),
        "501 members": _zip([*files.items(), *((f"runs/{n}/run.json", b"{}") for n in range(1, 502))]),
        "a member twice": _twice(files),
        "encrypted flag": _flagged(whole),
        "unknown packing": _packed_by(99, whole),
        "table of contents of a MB": _zip((f"runs/{n % 999}/{'x' * 60}{n}", b"") for n in range(12_000)),
        "newer format": head_with(format=2),
        "format as text": head_with(format="1"),
        "format 0": head_with(format=0),
        "no sections": head_with(sections={}),
        "sections as list": head_with(sections=[["0"]]),
        "section with a path": head_with(sections={"micro": ["../0"]}),
        "run twice": head_with(sections={"micro": ["0", "0"]}),
        "run that is not there": head_with(sections={"micro": ["0", "7"]}),
        "member with a path": head_with(members={"../x": {"bytes": 1, "sha256": "0" * 64}, "runs/9/run.json": None}),
        "bundle.json is a list": _zip((files | {BUNDLE: b"[]"}).items()),
        "bundle.json is no JSON": _zip((files | {BUNDLE: b"{'a': 1}"}).items()),
        "bundle.json is no UTF-8": _zip((files | {BUNDLE: b"\xff\xfe{}"}).items()),
        "deep JSON": replaced(run, b"[" * 200_000 + b"]" * 200_000),
        "deep JSON in an object": replaced(run, b'{"request":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001),
        "huge JSON": replaced(run, b'{"a":"' + b"0123456789abcdef" * (9 << 16) + b'"}'),
        "huge number": run_with(task=10**4000),
        "number of 5000 digits": replaced(run, b'{"task": ' + b"9" * 5000 + b"}"),
        "NaN metric": replaced(run, json.dumps(document(files) | {"metrics": {"R@1": float("nan")}}).encode()),
        "infinite metric": replaced(run, json.dumps(document(files) | {"metrics": {"R@1": float("inf")}}).encode()),
        "1e999": replaced(run, files[run].replace(b'"metrics": {', b'"metrics": {"x": 1e999, ', 1)),
        "NaN setting": request_with(settings={"m": float("nan")}),
        "chain as text": run_with(chain="0" * 64),
        "chain of numbers": run_with(chain=[1, 2]),
        "short digest": run_with(chain=["abc"]),
        "task 0": run_with(task=0),
        "unknown key": run_with(extra=1),
        "no tasks": request_with(tasks=[]),
        "unknown protocol": request_with(protocol="../../x"),
        "seed below 0": request_with(seed=-1),
        "threads as text": request_with(threads="1"),
        "parquet that is none": replaced(parquet, b"PAR1" + bytes(100) + b"PAR1"),
        "parquet cut": replaced(parquet, files[parquet][: len(files[parquet]) // 2]),
        "10^9 rows declared": replaced(parquet, _declaring(files[parquet], 10**9)),
        "2^21 rows": ranks_with(**{name: pa.repeat(values[0], many) for name, values in ranks.items()}),
        "other columns": replaced(parquet, _parquet({"a": [1]})),
        "ranks as text": ranks_with(rank=["0"] * rows),
        "rank NaN": ranks_with(rank=[float("nan")] * rows),
        "rank infinite": ranks_with(rank=[float("inf")] * rows),
        "rank below 0": ranks_with(rank=[-1.0] * rows),
        "rank beyond the gallery": ranks_with(rank=[1e9] * rows),
        "row of the matrix beyond it": ranks_with(after_task=pa.array([1 << 40] * rows)),
        "task below 0": ranks_with(task=pa.array([-1] * rows)),
        "null ids": ranks_with(clip_id=pa.array([None] * rows, pa.string())),
        "id of 5 MB": ranks_with(clip_id=["x" * (5 << 20)] * rows),
        "ids of 4 KB in 20,000 rows": ranks_with(
            **{name: pa.repeat(values[0], 20_000) for name, values in (ranks | {"clip_id": ["x" * 4000]}).items()}
        ),
        "every query twice": ranks_with(sample=pa.array([0] * rows)),
        "tensors that are none": replaced(weights, b"\x80\x04cos\nsystem\n"),
        "tensors of 2^60 bytes of header": replaced(weights, huge + b"{}"),
        "tensors beyond the file": replaced(
            weights, _tensor_header({"dtype": "F32", "shape": [9], "data_offsets": [0, 36]})
        ),
        "tensors of a strange type": replaced(
            weights, _tensor_header({"dtype": "PY", "shape": [1], "data_offsets": [0, 4]})
        ),
        "tensors of a vast shape": replaced(
            weights, _tensor_header({"dtype": "F32", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 4]})
        ),
    }


def _without(files: Files, lost: str) -> list[tuple[str, bytes]]:
    return [(name, data) for name, data in files.items() if name != lost]


def _listed(files: Files) -> bytes:
    head = document(files, BUNDLE)
    head["members"] = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
        if name != BUNDLE
    }
    return _zip((files | {BUNDLE: json.dumps(head).encode()}).items(), zipfile.ZIP_STORED)


def _tensor_header(tensor: dict[str, Any]) -> bytes:
    header = json.dumps({"a": tensor}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4)


def _twice(files: Files) -> bytes:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _zip([*files.items(), ("runs/0/run.json", b"{}")])


def _packed_by(kind: int, data: bytes) -> bytes:
    """With another kind of packing said of every member."""
    out = bytearray(data)
    for magic, place in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        at = out.find(magic)
        while at >= 0:
            out[at + place : at + place + 2] = struct.pack("<H", kind)
            at = out.find(magic, at + 4)
    return bytes(out)


def _flagged(data: bytes) -> bytes:
    """With the mark of encryption on every member."""
    out = bytearray(data)
    for magic, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = out.find(magic)
        while at >= 0:
            out[at + place] |= 1
            at = out.find(magic, at + 4)
    return bytes(out)
