"""Real files: every codec and damage of the 81 clips in one run, and the 15 signs as a five-task stream.

The clips lie beside the checkout (`../shared/clips`); each test copies what it needs into a folder of its own.
"""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest

import kinoray
from kinoray.data import process_rows, slots
from kinoray.data.manifest import read_manifest
from kinoray.runs.result import Result

TASKS = ("first", "second", "third")
SETTINGS = {"batch_size": 8, "frames": 2, "test_frames": 2}


def captions_of(readme: Path) -> dict[str, str]:
    """File name -> content, the last column of the table in the clips' README."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in readme.read_text("utf-8").splitlines()
        if line.startswith("|")
    ]
    return {row[0]: row[-1] for row in cells[2:] if len(row) == len(cells[0])}


def own_folder(folder: Path, clips: Path, table: list[dict[str, str]]) -> Path:
    """A folder with copies of the table's videos and a captions.csv."""
    folder.mkdir()
    for row in table:
        shutil.copy(clips / row["video"], folder / row["video"])
    with (folder / "captions.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    return folder


def bare_run(stream: Path, runs: Path, **settings: float) -> Result:
    """Base-MoCo in this process; few frames, for the files are the point."""
    result = kinoray.run(
        "base_moco", stream=str(stream), num_workers=0, runs=runs, quiet=True, settings=SETTINGS | settings
    )
    assert isinstance(result, Result)
    return result


@pytest.mark.slow
def test_all_real_clips_train_and_the_bad_list_is_what_their_table_implies(
    clips_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Undecodable by `clips.csv`: no frame decodes, or decoding raises, or there is no video stream."""
    with (clips_folder / "clips.csv").open(encoding="utf-8") as file:
        facts = {row["file"]: row for row in csv.DictReader(file)}
    implied = {
        name: "open" if "no video stream" in row["notes"] else "decode"
        for name, row in facts.items()
        if row["frames_decoded"] in ("", "0") or {"decode", "no video stream"} & set(row["notes"].split("; "))
    }
    captions = captions_of(clips_folder / "README.md")
    assert set(captions) == set(facts) and len(facts) == 81
    table = [
        {"video": name, "caption": caption, "task": TASKS[number % 3]}
        for number, (name, caption) in enumerate(captions.items())
    ]

    decoded: set[str] = set()
    with_frames, fetch_clip = process_rows._with_frames, slots.fetch_clip

    def sent(reader, slot, row, in_cache):
        row = with_frames(reader, slot, row, in_cache)
        if row.video is not None:
            manifest, clip_row, _ = reader.source(row)
            decoded.add(manifest.uri(clip_row))
        return row

    def read_here(clip, *arguments):
        fetched = fetch_clip(clip, *arguments)
        decoded.add(Path(clip.path).name)
        return fetched

    monkeypatch.setattr(process_rows, "_with_frames", sent)
    monkeypatch.setattr(slots, "fetch_clip", read_here)
    # One epoch shows every training clip once; the rest is for validation and test.
    result = bare_run(own_folder(tmp_path / "clips", clips_folder, table), tmp_path / "runs", epochs=1)

    assert result.state == "finished"
    assert result.run["tasks"] == list(TASKS)
    steps = result.losses.dropna(subset="loss")
    assert steps.groupby("task").size().min() >= 1 and set(steps["task"]) == {0, 1, 2}
    assert np.isfinite(steps["loss"]).all()
    bad = result.bad_samples
    assert dict(zip(bad["uri"], bad["stage"], strict=True)) == implied
    assert len(bad) == len(implied) == result.outcome["bad_samples"]
    assert (bad["message"].str.len() > 5).all() and not bad["message"].str.contains("\n").any()
    assert set(bad["task"]) <= set(TASKS)
    assert decoded == set(facts) - set(implied)


def test_the_fifteen_signs_are_a_five_task_stream_that_trains(clips_folder: Path, tmp_path: Path) -> None:
    from kinoray.backbones import load_backbone
    from kinoray.training.checkpoint import newest

    captions = captions_of(clips_folder / "README.md")
    signs = sorted(name for name, caption in captions.items() if "Sign Language" in caption)
    assert len(signs) == 15
    table = [
        {"video": name, "label": Path(name).stem, "task": f"signs-{number // 3}"} for number, name in enumerate(signs)
    ]
    stream = own_folder(tmp_path / "signs", clips_folder, table)
    result = bare_run(stream, tmp_path / "runs", epochs=2, batch_size=4)

    assert result.state == "finished" and result.outcome["bad_samples"] == 0
    assert result.run["tasks"] == [f"signs-{number}" for number in range(5)]
    steps = result.losses.dropna(subset="loss")
    assert set(steps["task"]) == set(range(5)) and np.isfinite(steps["loss"]).all()
    assert result.matrix.notna().to_numpy().tolist() == np.tril(np.ones((5, 5), bool)).tolist()
    assert np.isfinite([result.metrics[name] for name in ("R@1", "FR", "HM")]).all()

    checkpoint = newest(result.folder / "checkpoints", say=print)
    assert checkpoint is not None
    before = load_backbone("tiny", 32).state_dict()
    after = checkpoint.tensors("method")
    moved = [
        name
        for name, weight in before.items()
        for key, value in after.items()
        if key.endswith(name) and value.shape == weight.shape and not value.equal(weight)
    ]
    assert moved, "no weight of the towers moved"


@pytest.mark.slow
def test_videomoco_learns_from_the_clips_for_twenty_steps(clips_folder: Path, tmp_path: Path) -> None:
    """32 neighbouring frames of each; of a shorter clip the last one repeats (`decoding.sampling`)."""
    with (clips_folder / "clips.csv").open(encoding="utf-8") as file:
        frames = {row["file"]: int(row["frames_decoded"] or 0) for row in csv.DictReader(file)}
    short = sorted(name for name, count in frames.items() if 0 < count < 32)[:12]
    long = sorted(name for name, count in frames.items() if count >= 32)[:12]
    names = short + long
    assert len(names) == 24
    folder = own_folder(tmp_path / "clips", clips_folder, [{"video": name, "caption": "a video"} for name in names])
    settings = {"frames": 32, "sampling": "consecutive", "test_frames": 32, "size_px": 32, "batch_size": 4}
    settings |= {"max_steps": 20, "epochs": 10, "queue_size": 64, "augmentation": "video-moco", "grayscale": 0.0}
    result = kinoray.run(
        "video_moco",
        stream=f"{folder}:video-ssl",
        backbone="tiny-3d",
        num_workers=0,
        settings=settings,
        runs=tmp_path / "runs",
        quiet=True,
    )
    assert isinstance(result, Result) and result.state == "finished"
    losses = result.losses.dropna(subset="loss")
    assert len(losses) == 20 and np.isfinite(losses["loss"]).all()
    assert losses["gap"].notna().sum() == 10, "frames are lost from the middle on"
    assert set(result.bad_samples["uri"]) == {"corrupted.mp4"}, "all others can be decoded"
    assert result.metrics["R@1"] is not None
    opened = kinoray.open_method(result)
    manifest = read_manifest(Path(opened.run.run["manifests"][0]))
    readable = set(short) - {"corrupted.mp4"}
    taught = [row for row in manifest.clips("train") if Path(manifest.uri(row)).name in readable]
    assert taught, "short clips are learned from"
    rows, seen = opened.reader.embed_clips("clips", manifest, "train", lambda video: video.flatten(2).mean(dim=2))
    for row in taught:
        (levels,) = seen[[list(rows).index(row)]]
        count = frames[Path(manifest.uri(row)).name]
        assert levels[count - 1 :].std() < 1e-4, "beyond its end its last frame repeats"
