"""Classes told by texts: what a class is called is given by the captions of its clips, "a photo of a cat" for one.

All clips of a class in a split have the same captions. Where there are several, the class is the mean of their unit
features, made unit again (CLIP's ensemble of prompts).
"""

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.nn.functional import normalize

from kinoray.data.manifest import SPLITS, Manifest, read_manifest
from kinoray.errors import BadData
from kinoray.evaluation.classification import note, ranks_among
from kinoray.evaluation.ranking import SCORES_NUMEL, TestSet
from kinoray.evaluation.tester import Clips, Tester
from kinoray.metrics import Ranks
from kinoray.training.stages import Stage
from kinoray.training.verbs import checked_scores

ClassTexts = dict[str, tuple[str, ...]]
"""Class -> its texts."""


def classes_or_captions(tester: Tester, stage: Stage, split: str, knows_task: bool) -> dict[int, Ranks]:
    """Ranks of every query of a split of a stage's tasks: of clips' classes, or of captions' clips where none has one.

    knows_task: candidates are those of the query's own task, and the method is told which; else those of all tasks.
    Sets that are held out have no other split than test. The last stage's features of the tasks' test clips are kept.
    """
    tasks = len(tester.run.tests) - tester.run.held_out
    everything = tuple(range(len(tester.run.tests)))
    texts = {task: class_texts(read_manifest(tester.run.tests[task])) for task in everything}
    seen_as = {task: stage.seen_as(task) if knows_task else stage.grown for task in everything}
    tests = [task for task in stage.tests if task < tasks or split == "test"]
    clips = {task: tester.gallery(task, split, seen_as[task]) for task in tests}
    if split == "test" and stage.row == tester.run.last_row:
        for task in tests[:tasks]:
            tester.keep(clips[task], stage)
    ranks = {}
    for task, block in clips.items():
        among = [task] if knows_task else [other for other in everything if bool(texts[other]) == bool(texts[task])]
        if texts[task]:
            features = [_class_features(tester, other, texts[other], seen_as[other]) for other in among]
            classes = [(other, label) for other in among for label in texts[other]]
            ranks[task] = _class_ranks(tester, block, torch.cat(features), classes)
        else:
            ranks[task] = _clip_ranks(
                tester, block, seen_as, {other: clips[other] for other in among if other in clips}
            )
    return ranks


@lru_cache(maxsize=1 << 10)
def class_texts(manifest: Manifest) -> ClassTexts:
    """The texts of all classes of a manifest, as test clips have them; of classes without any, as the others have them.

    {} where no clip has a label. Raises: BadData for a clip without one beside others, for clips of a class with
    different captions, and for a class without any.
    """
    texts: ClassTexts = {}
    if not manifest.rows_by("label"):
        return texts
    for split in SPLITS[::-1]:
        known = set(texts)
        rows = manifest.clips(split)
        labels = manifest.labels(rows)
        captions = manifest.table["captions"].take(pa.array(rows)).to_pylist()
        for row, label, own in zip(rows.tolist(), labels, map(tuple, captions), strict=True):
            if label is None or not own or (label not in known and texts.setdefault(label, own) != own):
                what = "no label" if label is None else "no caption" if not own else "other captions than its class"
                raise BadData(
                    f"The {split} clip {manifest.id(row)!r} in {manifest.path} has {what}. With labels, all clips of a "
                    "class need the same captions; for retrieval by captions, leave out all labels."
                )
    return texts


def _class_features(tester: Tester, task: int, texts: ClassTexts, seen_as: int) -> Tensor:
    """A feature of each class, (C, ...) on the CPU."""
    return tester.once(("classes", task, seen_as), partial(_embedded, tester, list(texts.values()), seen_as))


def _embedded(tester: Tester, texts: Sequence[tuple[str, ...]], seen_as: int) -> Tensor:
    flat = [text for of_class in texts for text in of_class]
    nobody = np.zeros(len(flat), np.int64)
    (features,) = tester.query_features(TestSet(0, [], tester.tokens(flat), nobody, nobody), seen_as, [seen_as])
    if len(flat) == len(texts):
        return features
    parts = normalize(features, dim=-1).split([len(of_class) for of_class in texts])
    return normalize(torch.stack([part.mean(dim=0) for part in parts]), dim=-1)


def _class_ranks(tester: Tester, clips: Clips, classes_CF: Tensor, classes: Sequence[tuple[int, str]]) -> Ranks:
    """Rank of each clip's class by the method's score of its text."""
    note(tester, clips)
    place = {name: number for number, name in enumerate(classes)}
    truth = np.array([place[clips.task, str(label)] for label in clips.manifest.labels(clips.rows)])
    return tester.on_first_rank(lambda: ranks_among(class_scores(tester, classes_CF, clips.features), truth))


def class_scores(tester: Tester, classes_CF: Tensor, clips_VF: Tensor) -> Tensor:
    """The method's score of every class's text for every clip, (V, C) float32 on the CPU."""
    device, score = tester.reader.world.device, tester.method.score
    texts = classes_CF.to(device)
    parts = []
    with torch.inference_mode(), torch.autocast(device.type, enabled=False):
        for block in clips_VF.split(max(1, SCORES_NUMEL // len(texts))):
            scores = checked_scores(score(texts, block.to(device)), len(texts), len(block))
            parts.append(scores.float().T.cpu())
    return torch.cat(parts)


def _clip_ranks(tester: Tester, clips: Clips, seen_as: dict[int, int], among: dict[int, Clips]) -> Ranks:
    """Rank of each caption's clip among the clips of some tasks, its own among them."""
    test = tester.queries_of(clips)
    if clips.split == "test":
        tester.note_queries(clips.task, test.samples, [test.clip_ids[place] for place in test.truth])
    queries = tester.query_features(test, seen_as[clips.task], [seen_as[task] for task in among])
    before = sum(len(block.rows) for task, block in among.items() if task < clips.task)
    return tester.rank(queries, [block.features for block in among.values()], test.truth + before)
