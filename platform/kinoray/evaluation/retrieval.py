"""Text to video: among a task's own clips, embedded by the current weights, or among the clips of all tasks so far,
whose features are stored once a task is learned and never recomputed."""

from collections.abc import Sequence

import numpy as np

from kinoray.evaluation.tester import Clips, Tester
from kinoray.metrics import Ranks, of_twins
from kinoray.training.stages import Stage


def validate_own_gallery(tester: Tester, task: int) -> Ranks:
    """Ranks of the queries of a trained task's validation split in its own gallery."""
    return rank_in_own_gallery(tester, tester.gallery(task, "validation", task, trained=True), task)


def own_galleries(tester: Tester, stage: Stage, split: str) -> dict[int, Ranks]:
    """Ranks of every query of a split of a stage's tasks, each task among its own clips.

    The features of earlier stages are of older models, so only those of the last stage's test clips are kept.
    """
    ranks = {}
    for task in stage.tests:
        clips = tester.gallery(task, split, stage.seen_as(task))
        ranks[task] = rank_in_own_gallery(tester, clips, stage.seen_as(task))
        if split == "test" and stage.row == tester.run.last_row:
            tester.keep(clips, stage)
    return ranks


def rank_in_own_gallery(tester: Tester, clips: Clips, seen_as: int) -> Ranks:
    """Ranks of the captions of some clips among these clips."""
    test = tester.queries_of(clips)
    if clips.split == "test":
        tester.note_queries(clips.task, test.samples, [test.clip_ids[place] for place in test.truth])
    return tester.rank(tester.query_features(test, seen_as, [seen_as]), [clips.features], test.truth)


def growing_gallery(tester: Tester, stage: Stage, split: str, with_twins: bool = False) -> dict[str, dict[int, Ranks]]:
    """Ranks of every query of a split of a stage's tasks: "" among the clips of all of them, "own" among its own.

    with_twins: also "what", the clip or its twin among all others, and "order", the clip beside its twin. All are from
    the same stored features and the same embedded queries. Those of the first task are kept after every task
    (`report.page`).
    """
    clips = {task: _block(tester, stage, task, split) for task in stage.tests}
    features = [block.features for block in clips.values()]
    seen_as = [stage.seen_as(task) for task in clips]
    joint: dict[int, Ranks] = {}
    own: dict[int, Ranks] = {}
    what: dict[int, Ranks] = {}
    order: dict[int, Ranks] = {}
    before = 0
    for place, (task, block) in enumerate(clips.items()):
        test = tester.queries_of(block)
        if split == "test":
            tester.note_queries(task, test.samples, [test.clip_ids[clip] for clip in test.truth])
        queries = tester.query_features(test, seen_as[place], seen_as)
        if split == "test" and task == 0 and not stage.one_for_all:
            tester.keep_queries(test, queries[place], stage)
        joint[task] = tester.rank(queries, features, test.truth + before)
        own[task] = tester.rank([queries[place]], [features[place]], test.truth)
        if with_twins:
            twins = _twins(test.clip_ids)[test.truth]
            ranks = tester.rank(queries, features, twins + before)
            what[task], order[task] = of_twins(joint[task], ranks, twins != test.truth)
        before += len(block.rows)
    return {"": joint, "own": own} | ({"what": what, "order": order} if with_twins else {})


def _twins(ids: Sequence[str]) -> np.ndarray:
    """Where each clip's twin stands, the other one whose id is the same up to the last slash; its own place without."""
    places: dict[str, list[int]] = {}
    for place, id in enumerate(ids):
        places.setdefault(id.rpartition("/")[0] or id, []).append(place)
    twins = np.arange(len(ids))
    for pair in places.values():
        if len(pair) == 2:
            twins[pair] = pair[::-1]
    return twins


def _block(tester: Tester, stage: Stage, task: int, split: str) -> Clips:
    """A task's clips with the features that were stored, or, the first time, made and stored now."""
    clips = tester.stored(task, split)
    if clips is None:
        clips = tester.gallery(task, split, stage.seen_as(task))
        tester.keep(clips, stage)
    return clips
