"""Search over a run on real videos: captions that nobody trained on find the video that they were written for."""

import csv
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import kinoray
from kinoray.runs.result import Result

MSVD = ("3qqEKTPxLNs_1_15", "UXs3eq68ZjE_250_255", "WTf5EgVY5uU_124_128")
"""Beside them the fourth, whose file is found by its captions' key."""
OTHERS = 12
TRAINED = 20
"""Captions of a video that are learned; up to as many others are asked."""


def real_folder(folder: Path, clips: Path, annotations: Path) -> tuple[Path, dict[str, list[str]]]:
    """The MSVD clips with some of their captions and other clips with the one in the README; file -> held-out ones."""
    (folder / "test").mkdir(parents=True)
    captions = json.loads((annotations / "msvd" / "captions_msvd.json").read_text())
    files = {path.stem: path for path in sorted(clips.iterdir()) if path.stem in captions}
    rows, held_out = [], {}
    for name, path in files.items():
        distinct = list(dict.fromkeys(captions[name]))
        rows += [{"video": path.name, "caption": text, "split": "train"} for text in distinct[:TRAINED]]
        rows.append({"video": f"test/{path.name}", "caption": distinct[TRAINED], "split": "test"})
        held_out[path.stem] = distinct[TRAINED : 2 * TRAINED]
    with (clips / "clips.csv").open(encoding="utf-8") as file:
        whole = [row["file"] for row in csv.DictReader(file) if row["frames_decoded"] == row["frames_header"]]
    plain = [name for name in whole if Path(name).stem not in files and name.endswith(".mp4")][:OTHERS]
    for name in plain:
        text = f"{Path(name).stem} <b>&"
        rows += [
            {"video": place, "caption": text, "split": split}
            for place, split in ((name, "train"), (f"test/{name}", "test"))
        ]
    for row in rows:  # a file is of one split
        shutil.copy(clips / Path(row["video"]).name, folder / row["video"])
    with (folder / "captions.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["video", "caption", "split"])
        writer.writeheader()
        writer.writerows(rows)
    return folder, held_out


@pytest.mark.slow
def test_held_out_captions_rank_their_real_video_above_chance(clips_folder: Path, tmp_path: Path) -> None:
    """By how few ways of giving the caption sets other videos their mean ranks would be as low: exact, by videos."""
    annotations = clips_folder.parent / "annotations"
    if not (annotations / "msvd").is_dir():
        pytest.skip("the published MSVD captions are not beside the checkout")
    folder, held_out = real_folder(tmp_path / "clips", clips_folder, annotations)
    assert len(held_out) == 4 and set(MSVD) < set(held_out)
    settings = {"frames": 4, "test_frames": 4, "epochs": 30, "learning_rate": 3e-4, "validations": 0}
    result = kinoray.run(
        "avg_pool", stream=f"{folder}:ctvr", backbone="tiny-clip", num_workers=0, runs=tmp_path / "runs", quiet=True,
        settings=settings,
    )  # fmt: skip
    assert isinstance(result, Result)
    ranks: dict[str, list[dict[str, int]]] = {name: [] for name in held_out}
    opened = kinoray.open_method(result)
    with pytest.MonkeyPatch.context() as patch:  # each search would build the model anew
        patch.setattr("kinoray.report.search.open_method", lambda run, method: opened)
        for name, texts in held_out.items():
            for text in texts:
                hits = result.search(text, k=100).hits
                ranks[name].append({Path(hit.clip.path).stem: place for place, hit in enumerate(hits, 1)})
    videos = sorted(ranks[MSVD[0]][0])
    assert len(videos) == 4 + OTHERS
    means = {name: {v: float(np.mean([r[v] for r in rows])) for v in videos} for name, rows in ranks.items()}
    own = sum(means[name][name] for name in held_out)
    others = [
        sum(means[n][v] for n, v in zip(held_out, given, strict=True)) for given in itertools.permutations(videos, 4)
    ]
    p = float(np.mean(np.array(others) <= own))
    print(f"mean rank {own / 4:.2f} of {len(videos)}, {sum(map(len, held_out.values()))} captions, p = {p:.5f}")
    assert p < 0.01
    page = result.search("a <script>", k=3).write(tmp_path / "hits.html").read_text()
    assert "<script>" not in page.split("</style>")[-1]
