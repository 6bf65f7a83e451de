"""Every data set as its download leaves it, small and with real media, goes through `prepare` to clips that decode.

A builder for each family writes the files and says which clips they hold; one test does the rest for all sets.
"""

import csv
import gzip
import io
import json
import pickle
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from support.clips import grey_ramp, write_clip

from kinoray.data.manifest import SPLITS, read_manifest
from kinoray.datasets.packages import concept_of, find_family, split_of_concept
from kinoray.datasets.prepare import prepare
from kinoray.datasets.readers import PICTURES, data_sets
from kinoray.datasets.readers.coop import LAYOUTS as COOP
from kinoray.decoding.forms import FrameForm
from kinoray.decoding.read_clip import read_clip
from kinoray.decoding.sampling import Sampling
from kinoray.errors import UsageError
from kinoray.runs.result import Result
from kinoray.streams import domains, load_stream
from kinoray.testing.engine import run_spec, spec_of

SECONDS = 30
"""Length of each video, at one frame a second: what DiDeMo's spans need."""
CODECS = {".avi": "mpeg4", ".webm": "libvpx", ".mkv": "libx264", ".mp4": "libx264", ".mov": "libx264"}
WORDS = {"train": "train", "validation": "val", "test": "test"}


@lru_cache
def video(suffix: str) -> bytes:
    """A video that becomes lighter; names without a known suffix get what a camera writes."""
    suffix = suffix if suffix in CODECS else ".mov"
    with tempfile.TemporaryDirectory() as folder:
        path = write_clip(Path(folder) / f"video{suffix}", grey_ramp(SECONDS, step=5), fps=1, codec=CODECS[suffix])
        return path.read_bytes()


class Tree:
    """A data set on disk, and the clips that its files hold."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clips: dict[str, dict[str, Any]] = {}
        """By id: the columns that its manifest row must have."""
        self.carved = 0
        """Training clips that the reader takes for validation."""
        self.extra: list[str] = []
        """Media files that no clip names."""
        self.greys: dict[str, int] = {}
        """By uri: the level of each picture."""
        self.pixels: dict[str, np.ndarray] = {}
        """By id: the frame (H, W, 3) of each item of an array."""
        self.count = 0
        self.is_complete = False
        """Whether what is on disk is all that there is: nothing can be missing."""

    def write(self, name: str, value: Any) -> None:
        """A file: bytes, text, lines, or anything else as JSON; lists are lines in text files."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(value, list) and path.suffix in (".txt", ".csv"):
            value = "".join(f"{line}\n" for line in value)
        if not isinstance(value, bytes | str):
            value = json.dumps(value)
        path.write_bytes(value if isinstance(value, bytes) else value.encode())

    def matlab(self, name: str, values: dict[str, Any]) -> None:
        """A MATLAB file."""
        data = io.BytesIO()
        savemat(data, values)
        self.write(name, data.getvalue())

    def media(self, uri: str) -> None:
        """A picture or video unlike all others, once for each uri."""
        if (self.root / uri).exists():
            return
        self.count += 1
        suffix = Path(uri).suffix
        data = io.BytesIO()
        if suffix.lower() in PICTURES:
            self.greys[uri] = self.count % 250
            Image.new("RGB", (40, 30), (self.greys[uri],) * 3).save(data, "JPEG")
        else:
            data.write(video(suffix))
        self.write(uri, data.getvalue() + self.count.to_bytes(4, "big"))  # decoders do not look behind the end

    def add(self, id: str, uri: str, split: str, captions: Sequence[str] = (), **columns: Any) -> None:
        """A clip and its file."""
        self.media(uri)
        self.clips[id] = {"uri": uri, "split": split, "captions": list(captions)} | columns

    def damage(self) -> list[str]:
        """Delete the first test file and cut the second in half; returns their uris."""
        uris = list(dict.fromkeys(clip["uri"] for clip in self.clips.values() if clip["split"] == "test"))
        if self.pixels or self.is_complete:
            return []
        lost, cut = uris[:2]
        (self.root / lost).unlink()
        (self.root / cut).write_bytes((self.root / cut).read_bytes()[: (self.root / cut).stat().st_size // 2])
        return [lost, cut]


def table(*rows: Iterable[Any]) -> str:
    """CSV as published: quotes where a field needs them."""
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


# Videos with captions

QUERY_COLUMNS = ("key", "vid_key", "video_id", "sentence")


def msrvtt_entries(numbers: Iterable[int]) -> dict[str, Any]:
    """The caption file: three captions a video; the category is the number's rest by 20."""
    numbers = list(numbers)
    about = [{"category": n % 20, "video_id": f"video{n}", "url": "", "split": "train", "id": n} for n in numbers]
    told = [{"caption": text, "video_id": f"video{n}", "sen_id": n} for n in numbers for text in msrvtt_texts(n)]
    return {"info": {}, "videos": about, "sentences": told}


def msrvtt_texts(number: int) -> list[str]:
    return [f"caption {k} of {number}" for k in range(3)]


def msrvtt_1ka(tree: Tree, name: str) -> None:
    """CLIP4Clip's `msrvtt_data.zip` beside `MSRVTT.zip`."""
    sizes = {"7k": [0, 1, 2, 6513, 6514], "9k": [0, 1, 2, 6513, 6514, 7010, 7011]}
    tests = [9770, 7020, 9773, 7026]
    tree.write("msrvtt_data/MSRVTT_data.json", msrvtt_entries([*sizes["9k"], *sorted(tests)]))
    for size, numbers in sizes.items():
        tree.write(f"msrvtt_data/MSRVTT_train.{size}.csv", ["video_id", *(f"video{n}" for n in numbers)])
    queries = [(f"ret{k}", f"msr{n}", f"video{n}", f"query, {n}") for k, n in enumerate(tests)]
    tree.write("msrvtt_data/MSRVTT_JSFUSION_test.csv", table(QUERY_COLUMNS, *queries))
    used = sizes["7k" if name.endswith("7k") else "9k"]
    for n in (*used, *tests):
        split = "test" if n in tests else "validation" if n in (6513, 6514) else "train"
        captions = [f"query, {n}"] if n in tests else msrvtt_texts(n)
        tree.add(f"video{n}", f"MSRVTT/videos/all/video{n}.mp4", split, captions, label=str(n % 20))
    tree.extra += [f"MSRVTT/videos/all/video{n}.mp4" for n in sizes["9k"] if n not in used]
    for uri in tree.extra:
        tree.media(uri)


def msrvtt_full(tree: Tree, name: str) -> None:
    """The archives of the challenge: two folders of videos, two JSON files."""
    numbers = {"train": (0, 1, 6512), "validation": (6513, 7009), "test": (7010, 7011, 7012, 9999)}
    tree.write("train_val_videodatainfo.json", msrvtt_entries((*numbers["train"], *numbers["validation"])))
    tree.write("test_videodatainfo.json", msrvtt_entries(numbers["test"]))
    for split, chosen in numbers.items():
        for n in chosen:
            folder = "TestVideo" if split == "test" else "TrainValVideo"
            tree.add(f"video{n}", f"{folder}/video{n}.mp4", split, msrvtt_texts(n), label=str(n % 20))


def msvd(tree: Tree, name: str) -> None:
    """`YouTubeClips.tar` beside CLIP4Clip's `msvd_data.zip`, whose captions are a pickle of token lists."""
    ids = {
        "train": ["-4wsuPCjDBc_5_15", "-7KMZQEsJW4_205_208", "_0nX-El-ySo_83_93"],
        "validation": ["bQJQGoJF7_k_162_169"],
        "test": ["eyhzdC936uk_15_27", "f-24IxG9ijw_25_40", "fBA_lxUiwSg_2_4"],
    }
    for split, clips in ids.items():
        tree.write(f"msvd_data/{WORDS[split]}_list.txt", clips)
        for id in clips:
            tree.add(id, f"YouTubeClips/{id}.avi", split, [f"a grey clip {split}", "it becomes lighter"])
    tokens = {id: [text.split() for text in clip["captions"]] for id, clip in tree.clips.items()}
    tree.write("msvd_data/raw-captions.pkl", pickle.dumps(tokens))


DIDEMO = {
    "train": ["1@N00_1_a.mov", "1@N00_2_b.", "1@N00_3_c.m4v"],
    "validation": ["2@N01_1_a.MOV", "2@N01_2_b.avi"],
    "test": ["3@N02_1_a.mov", "3@N02_2_b.mp4", "3@N02_3_c.", "3@N02_4_d.null", "3@N02_5_e"],
}


def didemo(tree: Tree, name: str) -> None:
    """The authors' JSON files and lists of videos, and the videos under the names that Flickr gave them."""
    for split, names in DIDEMO.items():
        moments = []
        for number, file in enumerate(names):
            uri, stem = f"videos/{file}", file.rpartition(".")[0] or file
            pieces = 5 if number == 1 else 6
            for k, (first, last) in enumerate(((0, 0), (2, 3))):
                about = {"annotation_id": 10 * number + k, "num_segments": pieces, "dl_link": ""}
                times = [[first, last]] * 3 + [[4, 4]]
                moments.append(about | {"video": file, "description": f"moment {k} of {stem}", "times": times})
                if name == "didemo-clips":
                    where = {"start": 5.0 * first, "end": 5.0 * (last + 1)}
                    tree.add(f"{stem}#{10 * number + k}", uri, split, [f"moment {k} of {stem}"], **where)
            if name == "didemo":
                text = f"moment 0 of {stem} moment 1 of {stem}"
                whole = {"start": None, "end": None} if pieces == 5 else {"start": 0.0, "end": 30.0}
                tree.add(stem, uri, split, [text], **whole)
        tree.write(f"annotations/{WORDS[split]}_data.json", moments)
        tree.write(f"annotations/{WORDS[split]}_list.txt", names[::-1])


def activitynet(tree: Tree, name: str) -> None:
    """`captions.zip`, the label file, and the videos in folders of two releases, in several containers."""
    videos = {"train": [f"v_-{n:010d}" for n in range(20)], "test": [f"v_{n:011d}" for n in range(100, 104)]}
    entry = {"duration": 30.0, "timestamps": [[0, 5.5], [30, 4.5]], "sentences": ["One.", "  Two. "]}
    database = {}
    for split, ids in videos.items():
        for n, id in enumerate(ids):
            suffix = (".mp4", ".mp4", ".mkv", ".webm")[n % 4]
            uri = f"{'v1-2' if n % 2 else 'v1-3'}/{WORDS[split]}/{id}{suffix}"
            label = database.setdefault(id[2:], {"annotations": [{"label": f"Activity {n % 2}"}]})["annotations"][0]
            if name == "activitynet":
                tree.add(id, uri, split, ["One. Two."], start=None, end=None, **label)
            else:
                tree.add(f"{id}#0", uri, split, ["One."], start=0.0, end=5.5, **label)
                tree.add(f"{id}#1", uri, split, ["Two."], start=4.5, end=30.0, **label)
    tree.carved = 1 if name == "activitynet" else 2
    tree.write("captions/train.json", dict.fromkeys(videos["train"], entry))
    for file in ("val_1.json", "val_2.json"):
        tree.write(f"captions/{file}", dict.fromkeys(videos["test"], entry))
    tree.write("activity_net.v1-3.min.json", {"database": database})


def vatex(tree: Tree, name: str) -> None:
    """The authors' JSON files; the halved lists beside them; clips named by clip id or by the id on YouTube."""
    files = {
        "vatex_training_v1.0.json": [f"-Ab_{n}_xyz{n:02d}_000010_000020" for n in range(3)],
        "vatex_validation_v1.0.json": [f"Cd-{n}-xyz{n:02d}_000000_000010" for n in range(5)],
        "vatex_public_test_english_v1.1.json": [f"Ef__{n}_xyz{n:02d}_000100_000110" for n in range(4)],
    }
    train, middle, last = files.values()
    splits = {"train": train, "validation": middle, "test": last}
    if name == "vatex-1k5":
        splits |= {"validation": middle[:2], "test": middle[2:]}
        for split, ids in splits.items():
            tree.write(f"vatex_data/{WORDS[split]}_list.txt", ids)
    for file, ids in files.items():
        entries = [{"videoID": id, "enCap": [f"{id} one", f"{id} two "], "chCap": ["x"]} for id in ids]
        tree.write(file, entries)
        for n, id in enumerate(ids):
            uri = f"videos/{id.rsplit('_', 2)[0]}.mkv" if n == 0 else f"videos/{id}.mp4"
            split = next((split for split, chosen in splits.items() if id in chosen), None)
            if split:
                tree.add(id, uri, split, [f"{id} one", f"{id} two"])
            else:
                tree.media(uri)
                tree.extra.append(uri)


def ctvr_msrvtt(tree: Tree, name: str) -> None:
    """The split's files as released, in `datasets/MSRVTT`, with the captions and videos of MSR-VTT."""
    tasks = int(name[-2:])
    published: dict[str, dict[int, dict[int, list[str]]]] = {"train": {}, "val": {}}
    spare = 6513  # an official validation video that no task uses, of class 13
    for label in range(20):
        task = 1 + label * tasks // 20
        about = {"label": str(label), "task": str(task)}
        for word, n in (("train", label), ("val", 9000 + label)):
            published[word].setdefault(task, {})[label] = [f"video{n}"]
            captions = msrvtt_texts(n) if word == "train" else [f"query {n}"]
            split = "test" if word == "val" else word
            tree.add(f"video{n}", f"datasets/MSRVTT/videos/video{n}.mp4", split, captions, **about)
        n, id = (spare, f"video{spare}") if label == spare % 20 else (label, f"video{label}@validation")
        tree.add(id, f"datasets/MSRVTT/videos/video{n}.mp4", "validation", msrvtt_texts(n)[:1], **about)
    tree.write(f"datasets/MSRVTT/MSRVTT_{tasks}_dataset.pkl", pickle.dumps(published))
    queries = [(f"ret{n}", f"msr{n}", f"video{n}", f"query {n}") for n in range(9000, 9020)]
    tree.write("datasets/MSRVTT/MSRVTT_CL_validation.csv", table(QUERY_COLUMNS, *queries))
    tree.write("datasets/MSRVTT/MSRVTT_data.json", msrvtt_entries([*range(20), spare, *range(9000, 9020)]))


def ctvr_actnet(tree: Tree, name: str) -> None:
    """The split's files as released, in `datasets/ACTNET`, a class for each task, with videos of ActivityNet."""
    tasks = int(name[-2:])
    published: dict[str, Any] = {word: {t: defaultdict(list) for t in range(1, tasks + 1)} for word in ("train", "val")}
    queries: dict[str, dict[str, Any]] = {"train": {}, "val": {}}
    for task in range(1, tasks + 1):
        about = {"label": f"Activity {task}", "task": str(task), "start": 4.0, "end": 20.0}
        for word in queries:
            id = f"v_{word}-{task:06d}"
            uri, text = f"datasets/ACTNET/videos/{id}.mp4", f"sentence of {id}."
            published[word][task][about["label"]].append(id)
            queries[word][id] = {"duration": 30.0, "timestamps": [[4.0, 20.0]], "sentences": [f" {text}"]}
            tree.add(id, uri, "test" if word == "val" else "train", [text], **about)
            if word == "train":
                tree.add(f"{id}@validation", uri, "validation", [text], **about)
    tree.write(f"datasets/ACTNET/ACTNET_{tasks}_dataset.pkl", pickle.dumps(published))
    for word, entries in queries.items():
        tree.write(f"datasets/ACTNET/{word}_queries.json", entries)


# Videos with classes


def kinetics(tree: Tree, name: str) -> None:
    """The mirror's folder `k400`: flat clips of each split, lists, and clips that replace damaged ones."""
    labels = ("abseiling", "shooting goal (soccer)", 'making "jam", sweet')
    for number, (split, word) in enumerate(WORDS.items()):
        rows = []
        for n, label in enumerate((*labels, labels[0])):
            start, video_id = 10 * n, f"-{split[:2]}_{n}-abcde{number}"[:11]
            id = f"{video_id}_{start:06d}_{start + 10:06d}"
            folder = "replacement/replacement_for_corrupted_k400" if (split, n) == ("train", 0) else word
            tree.add(id, f"k400/{folder}/{id}.mp4", split, label=label)
            rows.append((label, video_id, start, start + 10, split, 0))
        columns = ("label", "youtube_id", "time_start", "time_end", "split", "is_cc")
        tree.write(f"k400/annotations/{word}.csv", table(columns, *rows))
    replaced = next(iter(tree.clips))
    tree.write(f"k400/train/{replaced}.mp4", b"")
    tree.extra.append(f"k400/train/{replaced}.mp4")


def ucf101(tree: Tree, name: str) -> None:
    """`UCF101.rar` beside the archive of lists, with their CR LF lines; twelve groups, a third of them tested."""
    classes = {1: ("Archery", "Archery"), 2: ("HandstandPushups", "HandStandPushups")}
    numbers = [f"{number} {label}" for number, (label, _) in classes.items()]
    tree.write("ucfTrainTestlist/classInd.txt", "\r\n".join([*numbers, ""]))
    for fold in (1, 2, 3):
        lines: dict[str, list[str]] = {"train": [], "test": []}
        for group in range(1, 13):
            number = 1 + group % 2
            label, word = classes[number]
            id = f"v_{word}_g{group:02d}_c01"
            split = "test" if group % 3 == fold - 1 else "train"
            lines[split].append(f"{label}/{id}.avi" + (f" {number}" if split == "train" else ""))
            if name == f"ucf101-{fold}":
                tree.add(id, f"UCF-101/{label}/{id}.avi", split, label=label)
        for split, of_split in lines.items():
            tree.write(f"ucfTrainTestlist/{split}list0{fold}.txt", "\r\n".join([*of_split, ""]))
    tree.carved = 1


def hmdb51(tree: Tree, name: str) -> None:
    """A folder of videos for each class, and a list for each class and split; some clips are unused.

    The lists' archive holds a folder; of the third split it was unpacked into one of the archive's name.
    """
    home = "test_train_splits/" if name == "hmdb51-3" else ""
    stems = ("#{n}_Gum", "(Rad)Schlag_die_Bank!{n}", "A&B[{n}]", "prelinger_{n}")
    uses = {1: "1201", 2: "2112", 3: "1120"}
    for fold, codes in uses.items():
        for label in ("chew", "smile"):
            lines = []
            for n in range(8):
                clip = f"{stems[n % 4].format(n=n)}_{label}_h_nm_np1_fr_med_0"
                code = codes[n % 4]
                lines.append(f"{clip}.avi {code} ")
                uri, split = f"{label}/{clip}.avi", {"1": "train", "2": "test"}.get(code)
                if name == f"hmdb51-{fold}" and split:
                    tree.add(f"{label}/{clip}", uri, split, label=label)
                tree.media(uri)
            tree.write(f"{home}testTrainMulti_7030_splits/{label}_test_split{fold}.txt", lines)
    tree.carved = 1


# Pictures


class Python2(pickle._Pickler):  # type: ignore[name-defined]
    """Pickles as Python 2 did: texts and bytes are one kind of string."""

    dispatch = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_string(self, text: str | bytes) -> None:
        data = text.encode("latin1") if isinstance(text, str) else text
        self.write(pickle.BINSTRING + len(data).to_bytes(4, "little") + data)
        self.memoize(text)

    dispatch[str] = dispatch[bytes] = save_string


def python2_pickle(value: Any) -> bytes:
    """Protocol 2, with the place where NumPy kept its functions then."""
    file = io.BytesIO()
    Python2(file, 2).dump(value)
    return file.getvalue().replace(b"cnumpy._core.", b"cnumpy.core.")


def cifar(tree: Tree, name: str) -> None:
    """The python version: pickles of flat arrays, 100 pictures for training and 10 for test."""
    ten = name == "cifar10"
    folder, key = ("cifar-10-batches-py", "labels") if ten else ("cifar-100-python", "fine_labels")
    rng = np.random.default_rng(0)
    names = [f"class{number:02d}" for number in range(10 if ten else 100)]
    files = {f"data_batch_{n}": 20 for n in range(1, 6)} | {"test_batch": 10} if ten else {"train": 100, "test": 10}
    places: Counter[str] = Counter()
    for file, count in files.items():
        split = "test" if "test" in file else "train"
        data, labels = rng.integers(0, 256, (count, 3072), dtype=np.uint8), rng.integers(0, len(names), count).tolist()
        names_of = [f"{file}_{n}.png" for n in range(count)]
        value = {"batch_label": file, key: labels, "data": data, "filenames": names_of}
        tree.write(f"{folder}/{file}", python2_pickle(value))
        for planes, label in zip(data, labels, strict=True):
            item = places[split]
            places[split] += 1
            about = {"uri": f"{split}.npy", "item": item, "label": names[label], "captions": [], "split": split}
            tree.clips[f"{split}-{item:05d}"] = about
            tree.pixels[f"{split}-{item:05d}"] = planes.reshape(3, 32, 32).transpose(1, 2, 0)
    meta, told = ("batches.meta", "label_names") if ten else ("meta", "fine_label_names")
    tree.write(f"{folder}/{meta}", python2_pickle({told: names}))
    tree.carved = 2


def tiny_imagenet(tree: Tree, name: str) -> None:
    """`tiny-imagenet-200.zip`, with five of its classes."""
    home, wnids = "tiny-imagenet-200", [f"n{n:08d}" for n in (5, 3, 1, 2, 4)]
    tree.write(f"{home}/wnids.txt", wnids)
    for wnid in wnids:
        for n in range(10):
            tree.add(f"{wnid}_{n}", f"{home}/train/{wnid}/images/{wnid}_{n}.JPEG", "train", label=wnid)
        tree.write(f"{home}/train/{wnid}/{wnid}_boxes.txt", [f"{wnid}_0.JPEG\t0\t10\t63\t58"])
    for n, wnid in enumerate(wnids):
        tree.add(f"val_{n}", f"{home}/val/images/val_{n}.JPEG", "test", label=wnid)
    lines = [f"val_{n}.JPEG\t{wnid}\t0\t32\t44\t62" for n, wnid in enumerate(wnids)]
    tree.write(f"{home}/val/val_annotations.txt", lines)
    tree.media(f"{home}/test/images/test_0.JPEG")  # without a class: no clip, and not told as extra
    tree.carved = 1


def imagenet(tree: Tree, name: str) -> None:
    """The competition's archive: validation pictures lie flat, a table has their classes."""
    home, wnids = "ILSVRC/Data/CLS-LOC", [f"n{n:08d}" for n in (3, 1, 2)]
    rows = []
    for number, wnid in enumerate([*wnids, wnids[0]], start=1):
        for n in (10, 2, 1):
            tree.add(f"{wnid}_{n}", f"{home}/train/{wnid}/{wnid}_{n}.JPEG", "train", label=wnid)
        id = f"ILSVRC2012_val_{number:08d}"
        tree.add(id, f"{home}/val/{id}.JPEG", "test", label=wnid)
        rows.append((id, f"{wnid} 1 2 3 4 {wnid} 5 6 7 8 "))
    tree.write("LOC_val_solution.csv", table(("ImageId", "PredictionString"), *rows))
    tree.media(f"{home}/test/ILSVRC2012_test_00000001.JPEG")  # without a class
    tree.carved = 1


def imagenet_sub(tree: Tree, name: str) -> None:
    """Sorted folders of some more classes, with the published lists of the pictures of 100."""
    lists: dict[str, list[str]] = {"train": [], "val": []}
    for n in range(102):
        wnid = f"n{n:08d}"
        uris = {"train": f"train/{wnid}/{wnid}_{n}.JPEG", "val": f"val/{wnid}/ILSVRC2012_val_{n + 1:08d}.JPEG"}
        for word, uri in uris.items():
            if n < 100:
                tree.add(Path(uri).stem, uri, "test" if word == "val" else "train", label=wnid)
                lists[word].append(f"{uri} {n}")
            else:
                tree.media(uri)
    for word, lines in lists.items():
        tree.write(f"imagenet100_splits/{word}_100.txt", lines)
    tree.carved = 1


def fetched(tree: Tree, name: str) -> None:
    """Forty concepts of two clips each, as `kinoray data fetch` leaves them; some are reserved, where any are."""
    lines = []
    for number in range(80):
        id, ending = f"thing {number // 2}/way-{number % 2}", "png" if name == "glyphs" else "mp4"
        uri = f"clips/thing-{number}.{ending}"
        split = split_of_concept(concept_of(id), 0, find_family(name).RESERVED)
        columns = {"label": f"kind {number % 3}", "task": "one" if split else "reserved"}
        tree.add(id, uri, split or "train", [f"a thing {number}"], **columns)
        told = {"id": id, "uri": uri, "captions": [f"a thing {number}"], **columns, "task": "one"}
        lines.append(json.dumps(told))
    tree.write("clips.jsonl", "".join(f"{line}\n" for line in lines))


DOMAIN_LISTS: dict[str, tuple[str, str, str]] = {
    "aircraft": ("fgvc-aircraft-2013b/data", "images_variant_{}.txt", "images"),
    "dtd": ("dtd/dtd", "labels/{}1.txt", "images"),
    "food101": ("food-101", "meta/{}.json", "images"),
    "oxford-pets": ("oxford-iiit-pet", "annotations/{}.txt", "images"),
}
"""Folder, lists of training and test, folder of the pictures."""


def listed_pictures(tree: Tree, name: str) -> None:
    """Text lists of each split, and a picture that is in none."""
    home, file, folder = DOMAIN_LISTS[name]
    for split in ("train", "test"):
        lines: list[str] = []
        entries: dict[str, list[str]] = {}
        for n in range(6):
            kind = f"a_kind {n % 2}" if name == "aircraft" else f"a_kind_{n % 2}"
            stem = {"aircraft": f"{split}{n}", "oxford-pets": f"{kind}_{split}{n}"}.get(name, f"{kind}/{split}{n}")
            about = {"aircraft": f"{stem} {kind}", "dtd": f"{stem}.jpg", "oxford-pets": f"{stem} 1 1 1"}
            lines.append(about.get(name, ""))
            entries.setdefault(kind, []).append(stem)
            uri = f"{home}/{folder}/{stem}.jpg"
            tree.add(f"{folder}/{stem}", uri, split, label=kind.replace("_", " "))
        word = "trainval" if (name, split) == ("oxford-pets", "train") else split
        tree.write(f"{home}/{file.format(word)}", entries if name == "food101" else lines)
    tree.media(f"{home}/{folder}/spare.jpg")
    tree.extra.append(f"{home}/{folder}/spare.jpg")
    tree.carved = 1


def class_folders(tree: Tree, name: str) -> None:
    """Ten pictures in a folder for each of two classes; of Caltech101 also those of none."""
    home = {"caltech101": "caltech101/101_ObjectCategories", "eurosat": "eurosat/2750", "sun397": "SUN397"}[name]
    classes = ("a/air_field/outdoor", "b/beach") if name == "sun397" else ("AirField", "beach")
    paths = [f"{kind}/sun_{n:02d}" for kind in classes for n in range(10)]
    train = set(torch.randperm(20, generator=torch.Generator().manual_seed(42)).tolist()[:16])
    for n, path in enumerate(paths):
        kind = path.rpartition("/")[0].partition("/")[2] if name == "sun397" else path.partition("/")[0]
        split = "train" if n in train else "test"
        tree.add(path, f"{home}/{path}.jpg", split, label=kind.replace("/", " ").replace("_", " "))
    if name == "caltech101":
        tree.media(f"{home}/BACKGROUND_Google/image_0001.jpg")
        tree.extra.append(f"{home}/BACKGROUND_Google/image_0001.jpg")
    tree.carved, tree.is_complete = 1, True


def mat_labels(tree: Tree, name: str) -> None:
    """Numbered classes in MATLAB files, as MATLAB writes them."""
    if name == "flowers102":
        splits = {"train": [1, 4, 5], "validation": [2], "test": [3, 6, 7]}
        for split, numbers in splits.items():
            for n in numbers:
                uri, label = f"flowers-102/jpg/image_{n:05d}.jpg", ("pink primrose", "hard-leaved pocket orchid")[n % 2]
                if split == "validation":
                    tree.media(uri)
                    tree.extra.append(uri)
                else:
                    tree.add(f"jpg/image_{n:05d}", uri, split, label=label)
        ids = {"trnid": splits["train"], "valid": splits["validation"], "tstid": splits["test"]}
        tree.matlab("flowers-102/imagelabels.mat", {"labels": [n % 2 + 1 for n in range(1, 8)]})
        tree.matlab("flowers-102/setid.mat", ids)
    else:
        names = np.array(["AM General Hummer", "Acura RL"], dtype=object)
        tree.matlab("stanford_cars/devkit/cars_meta.mat", {"class_names": names})
        places = {"train": "devkit/cars_train_annos.mat", "test": "cars_test_annos_withlabels.mat"}
        for split, file in places.items():
            entries = np.array(
                [(n % 2 + 1, f"{n:05d}.jpg") for n in range(1, 6)], dtype=[("class", object), ("fname", object)]
            )
            tree.matlab(f"stanford_cars/{file}", {"annotations": entries})
            for kind, picture in entries.tolist():
                uri = f"cars_{split}/{picture}"
                tree.add(uri[:-4], f"stanford_cars/{uri}", split, label=names[kind - 1])
    tree.carved = 1


def mnist(tree: Tree, name: str) -> None:
    """IDX files, those of the test packed."""
    rng = np.random.default_rng(0)
    words = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    for split, word, count in (("train", "train", 50), ("test", "t10k", 4)):
        digits = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, count, dtype=np.uint8)
        for kind, values, axes in (("images-idx3", digits, 3), ("labels-idx1", labels, 1)):
            data = bytes([0, 0, 8, axes]) + np.array(values.shape, ">u4").tobytes() + values.tobytes()
            packed = split == "test"
            tree.write(f"MNIST/raw/{word}-{kind}-ubyte{'.gz' * packed}", gzip.compress(data) if packed else data)
        for n, digit in enumerate(labels.tolist()):
            about = {"uri": f"{split}.npy", "item": n, "label": f"{digit} - {words[digit]}", "split": split}
            tree.clips[f"{split}-{n:05d}"] = about
            tree.pixels[f"{split}-{n:05d}"] = np.repeat(digits[n][..., None], 3, axis=-1)
    tree.carved = 1


def coop(tree: Tree, name: str) -> None:
    """CoOp's own split of each set."""
    folder, file, pictures, _ = COOP[name]
    entries: dict[str, list[list[Any]]] = {"train": [], "val": [], "test": []}
    for word, of_split in entries.items():
        for n in range(4):
            path = f"{word}{n}.jpg" if name == "coop-aircraft" else f"kind_{n % 2}/{word}{n}.jpg"
            of_split.append([path, n % 2, f"kind_{n % 2}"])
            uri = "/".join(filter(None, [pictures, path]))
            split = "validation" if word == "val" else word
            tree.add(uri[:-4], f"{folder}/{uri}", split, label=f"kind {n % 2}")
    if name == "coop-aircraft":
        for word, of_split in entries.items():
            tree.write(f"{folder}/images_variant_{word}.txt", [f"{path[:-4]} {kind}" for path, _, kind in of_split])
    else:
        tree.write(f"{folder}/{file}", entries)


TREES: dict[str, Callable[[Tree, str], None]] = {
    "msrvtt": msrvtt_1ka,
    "msrvtt-7k": msrvtt_1ka,
    "msrvtt-full": msrvtt_full,
    "msvd": msvd,
    "didemo": didemo,
    "didemo-clips": didemo,
    "activitynet": activitynet,
    "activitynet-clips": activitynet,
    "vatex": vatex,
    "vatex-1k5": vatex,
    "ctvr-msrvtt-10": ctvr_msrvtt,
    "ctvr-msrvtt-20": ctvr_msrvtt,
    "ctvr-actnet-10": ctvr_actnet,
    "ctvr-actnet-20": ctvr_actnet,
    "kinetics400": kinetics,
    "ucf101-1": ucf101,
    "ucf101-2": ucf101,
    "ucf101-3": ucf101,
    "hmdb51-1": hmdb51,
    "hmdb51-2": hmdb51,
    "hmdb51-3": hmdb51,
    "cifar10": cifar,
    "cifar100": cifar,
    "tiny-imagenet": tiny_imagenet,
    "imagenet": imagenet,
    "imagenet-sub": imagenet_sub,
    **dict.fromkeys(DOMAIN_LISTS, listed_pictures),
    **dict.fromkeys(("caltech101", "eurosat", "sun397"), class_folders),
    **dict.fromkeys(("flowers102", "stanford-cars"), mat_labels),
    "mnist": mnist,
    **dict.fromkeys(COOP, coop),
    "sprites": fetched,
    "robots": fetched,
    "glyphs": fetched,
}


def test_every_data_set_has_a_tree() -> None:
    assert TREES.keys() == data_sets().keys()


@pytest.mark.parametrize("name", TREES)
def test_a_download_is_prepared_to_clips_that_decode(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tree = Tree(tmp_path / "set")
    TREES[name](tree, name)
    damaged = tree.damage()
    before = listing(tree.root)
    report = prepare(name, tree.root, workers=0, progress=False)

    told = {kind: sorted(line.split("\t")[0] for line in lines) for kind, lines in report.problems.items()}
    ids = [sorted(id for id, clip in tree.clips.items() if clip["uri"] == uri) for uri in damaged] or [[], []]
    wrong = {"missing": ids[0], "corrupt": ids[1], "extra": sorted(tree.extra)}
    assert told == wrong | {"short": [], "duplicate": []}
    counts = Counter(clip["split"] for clip in tree.clips.values())
    counts += Counter({"train": -tree.carved, "validation": tree.carved})
    assert {split: count["annotated"] for split, count in report.splits.items()} == counts
    counts -= Counter({"test": len(ids[0]) + len(ids[1])})
    assert {split: count["ready"] for split, count in report.splits.items()} == counts and set(counts) == set(SPLITS)

    manifest = read_manifest(report.manifest)
    rows = {row["id"]: row for row in manifest.table.to_pylist()}
    ready = {id: clip for id, clip in tree.clips.items() if clip["uri"] not in damaged}
    for id, clip in ready.items():
        prepared = {key: rows[id][key] for key in clip}
        if tree.carved and prepared["split"] == "validation":
            prepared["split"] = "train"
        assert prepared == clip, id
    assert rows.keys() == ready.keys()
    side = next(map(len, tree.pixels.values()), 32)
    for split in SPLITS:
        assert len(manifest.clips(split)) == counts[split]
        row = int(manifest.clips(split)[0])
        frames = read_clip(manifest.clip(row), Sampling("uniform", 2), seed=0, form=FrameForm(side))
        assert frames.dtype == np.uint8 and frames.shape[1:] == (side, side, 3)
        if tree.pixels:
            assert np.array_equal(frames, tree.pixels[manifest.id(row)][None])
        elif grey := tree.greys.get(manifest.uri(row)):
            assert len(frames) == 1 and abs(frames.mean() - grey) < 3
        else:
            assert len(frames) == 2 and frames[0].mean() + 5 < frames[1].mean()

    again = prepare(name, tree.root, workers=0, progress=False)
    assert (again.probed, again.known) == (0, report.probed) and again.manifest_digest == report.manifest_digest
    parts = {(c["uri"], c.get("start"), c.get("end")) for c in tree.clips.values() if c["uri"] not in damaged[:1]}
    assert report.probed == (0 if tree.pixels else len(parts)) and again.problems == report.problems
    assert listing(tree.root) == before


@pytest.mark.parametrize("name", ["mtil:order=2", "xtail:shots=2"])
def test_the_sets_of_a_stream_of_domains_run_from_end_to_end(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(UsageError, match=r"^Not prepared yet: .*aircraft.*mnist.*sun397"):
        load_stream(name)
    sets = domains.ORDERS[name.partition(":")[0], "2" if "order" in name else "1"].split()
    for data_set in sets:
        TREES[data_set](tree := Tree(tmp_path / data_set), data_set)
        prepare(data_set, tree.root, workers=0, progress=False)
    stream = load_stream(name)
    assert len(stream.tasks) == len(sets) == (11 if name.startswith("mtil") else 10)
    recipe = replace(stream.recipe, size_px=32, max_steps=1, batch_size=2)
    spec = spec_of("base_moco", replace(stream, backbone="tiny", recipe=recipe), tmp_path / "runs")
    run_spec(spec)
    result = Result(spec.folder)
    assert not result.matrix_of("top1", whole=True).isna().to_numpy().any()
    tested = [read_manifest(task.manifest) for task in stream.tasks]
    own = [len(set(manifest.table["label"].to_pylist())) for manifest in tested]
    among = result.ranks.groupby("task")["gallery"].unique().tolist()
    assert [sizes.tolist() for sizes in among] == [[classes if "mtil" in name else sum(own)] for classes in own]
    labels = tested[0].labels(tested[0].clips("train"))
    assert "shots" not in name or max(Counter(labels).values()) <= 2


def listing(root: Path) -> dict[str, int]:
    """Every file under a folder with the time of its last change: a data folder is never written to."""
    return {str(path): path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
