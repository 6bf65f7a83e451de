"""From plan to tensors: the true shape of frames reaches the crops."""

from dataclasses import replace

import numpy as np
import torch
from support.clips import write_clip

from kinoray.backbones import load_backbone
from kinoray.config import Recipe
from kinoray.data.augment import augment_views
from kinoray.data.manifest import write_manifest
from kinoray.decoding.frame_cache import OFF
from kinoray.method import Needs
from kinoray.training import batches as batching
from kinoray.training import distributed
from kinoray.training.batches import BatchReader
from kinoray.training.distributed import EVAL_BATCH, EVAL_PIXELS, World, eval_batch
from kinoray.training.encode import encode_split, total

RED, BLUE = (255, 0, 0), (0, 0, 255)
RECIPE = Recipe(augmentation="ctvr", size_px=16, batch_size=4, epochs=1, frames=2, test_frames=2, sampling="uniform")


def wide_manifest(folder, probed=True):
    """Four clips of 64 x 36 pixels: a blue square in the middle, red to both sides of it."""
    frame = np.broadcast_to(np.array(RED, dtype=np.uint8), (36, 64, 3)).copy()
    frame[:, 14:50] = BLUE
    size = {"width_px": 64, "height_px": 36} if probed else {}
    rows = []
    for number in range(4):
        write_clip(folder / f"{number}.mp4", np.stack([frame] * (3 + number)))
        rows += [
            {"id": f"{split}{number}", "uri": f"{number}.mp4", "captions": ["a"], "split": split} | size
            for split in ("train", "test")
        ]
    return write_manifest(rows, folder / "one.parquet", folder)


def feed_of(manifest, **changes):
    return BatchReader(
        names=["one"],
        manifests=[str(manifest.path)],
        recipe=replace(RECIPE, **changes),
        needs=Needs(views=2, plain="all"),
        seed=0,
        num_tasks=1,
        world=World(),
        decode_slots=0,
        towers=load_backbone("tiny"),
        report_bad=lambda records: None,
        cache=OFF,
    )


def blue_alone(views):
    """Whether no pixel of views (B, T, 3, H, W) is red, up to what the codec smears at the edge."""
    return bool((views[:, :, 2, :, 1:-1] > views[:, :, 0, :, 1:-1]).all())


def test_the_test_crop_is_the_true_centre_square_of_a_wide_clip(tmp_path) -> None:
    manifest = wide_manifest(tmp_path)
    reader, seen = feed_of(manifest), []
    reader.embed_clips("one", manifest, "test", lambda view: seen.append(view) or view.mean(dim=(1, 2, 3, 4)))
    encode_split(reader, 0, lambda rows: seen.append(rows.plain) or rows.plain.mean(dim=(1, 2, 3, 4)))
    with reader.batches(reader.plan(0, []), 0) as batches:
        seen += [batch.plain for _, batch in batches]
    assert len(seen) == 3 and all(map(blue_alone, seen))


def test_training_crops_keep_the_true_ratios_of_a_wide_clip(tmp_path, monkeypatch) -> None:
    manifest = wide_manifest(tmp_path)
    reader, given = feed_of(manifest), []
    monkeypatch.setattr(batching, "augment_views", lambda *args: given.append(args[-1]) or augment_views(*args))
    with reader.batches(reader.plan(0, []), 0) as batches:
        assert len(list(batches)) == 1
    encode_split(reader, 0, lambda rows: rows.views[0].mean(dim=(1, 2, 3, 4)), views=1)
    assert [sizes.tolist() for sizes in given] == [[[18, 32]] * 4] * 2  # 16 px views from 18 x 18 / 36 x 64


def test_clips_that_were_never_probed_have_the_same_views(tmp_path) -> None:
    views = []
    for probed in (True, False):
        reader = feed_of(wide_manifest(tmp_path, probed=probed))
        with reader.batches(reader.plan(0, []), 0) as batches:
            views += [torch.stack([*batch.views, batch.plain]) for _, batch in batches]
    assert torch.equal(*views)


def test_batches_of_evaluation_follow_frames_and_pixels() -> None:
    assert [eval_batch(*size) for size in ((4, 48), (8, 48), (1, 32), (8, 384), (320, 112))] == [64, 64, 64, 14, 4]
    assert eval_batch(10_000, 384) == 1
    for frames in (1, 12, 32, 320):
        sides = range(16, 512, 16)
        sizes = [eval_batch(frames, px) for px in sides]
        assert sizes == sorted(sizes, reverse=True) and min(sizes) >= 1 and max(sizes) <= EVAL_BATCH
        pixels = [count * frames * px**2 for px, count in zip(sides, sizes, strict=True) if count > 1]
        assert max(pixels, default=0) <= EVAL_PIXELS


def test_evaluation_takes_no_more_clips_at_a_time(tmp_path, monkeypatch) -> None:
    manifest = wide_manifest(tmp_path)
    whole, counts = feed_of(manifest), []
    rows, features = whole.embed_clips("one", manifest, "test", lambda view: view.mean(dim=(1, 3, 4)))
    monkeypatch.setattr(distributed, "EVAL_PIXELS", 3 * 2 * 16**2 + 1)  # three clips of two frames
    reader = feed_of(manifest)
    again = reader.embed_clips(
        "one", manifest, "test", lambda view: counts.append(len(view)) or view.mean(dim=(1, 3, 4))
    )
    encode_split(reader, 0, lambda rows: counts.append(len(rows.ids)) or rows.plain.mean(dim=(1, 3, 4)))
    assert counts == [3, 1, 3, 1]
    assert again[0].tolist() == rows.tolist() and again[1].equal(features)


def test_a_total_is_the_sum_over_all_batches(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(distributed, "EVAL_PIXELS", 3 * 2 * 16**2 + 1)
    reader, sizes = feed_of(wide_manifest(tmp_path)), []
    _, features = encode_split(reader, 0, lambda rows: rows.plain.mean(dim=(1, 3, 4)))
    summed = total(reader, 0, lambda rows: sizes.append(len(rows.ids)) or rows.plain.mean(dim=(1, 3, 4)).sum(dim=0))
    assert sizes == [3, 1] and summed.dtype == torch.float64
    torch.testing.assert_close(summed, features.double().sum(dim=0), rtol=1e-6, atol=1e-6)


def test_no_training_clips_are_kept_as_if_they_were_a_split(tmp_path) -> None:
    """Not even none: a rank may have no clip of a memory at one time, and some of them later."""
    manifest = wide_manifest(tmp_path)
    reader = feed_of(manifest)
    rows = manifest.clips("train")
    for only in (rows[:0], rows[:2], rows):
        assert sum(len(clips.rows) for _, clips in reader.clips("one", manifest, "train", 2, only)) == len(only)
    assert not reader.cached_splits


def test_a_rank_decodes_in_as_many_processes_as_it_has_threads_and_in_two_at_least(tmp_path, monkeypatch) -> None:
    asked: list[int] = []
    decode_clips = batching.decode_clips

    def noted(reader, slots, processes):
        asked.append(processes)
        return decode_clips(reader, slots, 2)

    monkeypatch.setattr(batching, "decode_clips", noted)
    manifest = wide_manifest(tmp_path)
    for threads in (1, 7):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert len(list(feed_of(manifest).clips("one", manifest, "test", 2))) == 1
    assert asked == [2, 7]
