"""Feature files: named by their model, mapped, and hashed once."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from kinoray.errors import CheckpointCorrupt
from kinoray.evaluation import feature_files
from kinoray.evaluation.feature_files import read_features, write_features


@pytest.mark.parametrize("shape", [(5, 4), (3, 2, 7), (1, 1)])
def test_what_is_read_is_what_was_written(shape, tmp_path) -> None:
    block = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    ids = [f"clip{number}" for number in range(len(block))]
    read_back = read_features(tmp_path, write_features(tmp_path, "test", 0, 1, ids, block))
    assert (
        read_back.ids.to_pylist() == ids
        and torch.equal(read_back.features, block)
        and read_back.features.dtype == torch.float32
    )
    assert (read_back.split, read_back.task, read_back.after_task) == ("test", 0, 1)
    assert read_back.largest_norm == pytest.approx(float(block.flatten(1).norm(dim=1).max()))


def test_a_file_says_which_model_made_it_and_another_model_writes_another_file(tmp_path) -> None:
    old, new = (write_features(tmp_path, "test", 0, after, ["a"], torch.full((1, 2), after)) for after in (0, 1))
    assert (old["after_task"], new["after_task"]) == (0, 1) and old["file"] != new["file"]
    assert read_features(tmp_path, old).features.tolist() == [[0.0, 0.0]]
    with pa.memory_map(str(tmp_path / new["file"])) as source:
        metadata = pa.ipc.open_file(source).schema.metadata
    assert {key.decode(): json.loads(value) for key, value in metadata.items()} == {
        "shape": [2],
        "split": "test",
        "task": 0,
        "after_task": 1,
        "largest_norm": pytest.approx(2**0.5),
    }


def test_a_file_is_mapped_and_its_digest_computed_once(tmp_path, monkeypatch) -> None:
    fact = write_features(tmp_path, "test", 0, 0, ["a", "b"], torch.ones(2, 3))
    hashed = []
    monkeypatch.setattr(feature_files, "sha256", lambda path: hashed.append(path) or fact["sha256"])
    mapped = [read_features(tmp_path, fact).features for _ in range(3)]
    assert len(hashed) == 1
    assert fact["file"] in Path("/proc/self/maps").read_text()
    mapped[0][0, 0] = 7.0  # copied on write
    assert read_features(tmp_path, fact).features[0, 0] == 1.0


def test_another_file_in_its_place_is_refused(tmp_path) -> None:
    fact = write_features(tmp_path, "test", 0, 0, ["a"], torch.ones(1, 3))
    read_features(tmp_path, fact)
    path = tmp_path / fact["file"]
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(CheckpointCorrupt, match="not the file"):
        read_features(tmp_path, fact)


def test_a_missing_file_is_named(tmp_path) -> None:
    fact = write_features(tmp_path, "test", 0, 0, ["a"], torch.ones(1, 3))
    (tmp_path / fact["file"]).unlink()
    with pytest.raises(CheckpointCorrupt, match=r"test-0-after-0\.arrow is missing"):
        read_features(tmp_path, fact)


def test_a_name_that_leads_elsewhere_is_refused(tmp_path) -> None:
    for name in ("../x.arrow", "/etc/passwd", "..", "a/b"):
        with pytest.raises(CheckpointCorrupt, match="is not a valid name of a file"):
            read_features(tmp_path, {"file": name, "sha256": "", "after_task": 0})
