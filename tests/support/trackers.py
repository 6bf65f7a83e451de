"""What trackers hold, read by their own readers: metric name -> [(step, value), ...] in the order of writing."""

import contextlib
import struct
from collections import defaultdict
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from support.waiting import wait_until

Series = dict[str, list[tuple[int, float]]]


def in_tensorboard(run: Path) -> Series:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


def in_mlflow(uri: str, name: str, experiment: str) -> Series:
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=uri)
    home = client.get_experiment_by_name(experiment).experiment_id
    (run,) = client.search_runs([home], f"attributes.run_name = '{name}'")
    histories = {metric: client.get_metric_history(run.info.run_id, metric) for metric in run.data.metrics}
    return {metric: [(m.step, m.value) for m in history] for metric, history in histories.items()}


def in_wandb(run: Path) -> Series:
    """Of all offline files of a run; they must be of one id."""
    import json

    series: Series = defaultdict(list)
    files = sorted(run.glob("wandb/offline-run-*/*.wandb"))
    assert len({file.name for file in files}) == 1, files
    for record in (record for file in files for record in wandb_records(file)):
        items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        step = items.get("_step", record.history.step.num)
        for name, value in items.items():
            if not name.startswith("_"):
                series[name].append((step, value))
    return dict(series)


def wandb_records(file: Path) -> list[Any]:
    """The records of a run's file; W&B's own process may still be writing the last of them when the run has ended."""

    def whole() -> list[Any]:
        with contextlib.suppress(DecodeError):  # read in the midst of a write
            records = _written_records(file)
            if any(record.WhichOneof("record_type") == "exit" for record in records):
                return records
        return []

    return wait_until(whole)


def _written_records(file: Path) -> list[Any]:
    """The records of a .wandb file, by W&B's own message type; the file is a log of LevelDB's (blocks of 32 KiB)."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, records, parts = file.read_bytes(), 7, [], b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            records.append(Record.FromString(parts))
            parts = b""
    return records
