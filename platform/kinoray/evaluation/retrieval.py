"""Text to video: among a task's own clips, embedded by the current weights, or among the clips of all tasks so far,
whose features are stored once a task is learned and never recomputed."""

from kinoray.evaluation.tester import Clips, Tester
from kinoray.metrics import Ranks
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


def growing_gallery(tester: Tester, stage: Stage, split: str) -> dict[str, dict[int, Ranks]]:
    """Ranks of every query of a split of a stage's tasks: "" among the clips of all of them, "own" among its own.

    Both from the same stored features and the same embedded queries. Those of the first task are kept after every
    task (`report.page`).
    """
    clips = {task: _block(tester, stage, task, split) for task in stage.tests}
    features = [block.features for block in clips.values()]
    seen_as = [stage.seen_as(task) for task in clips]
    joint: dict[int, Ranks] = {}
    own: dict[int, Ranks] = {}
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
        before += len(block.rows)
    return {"": joint, "own": own}


def _block(tester: Tester, stage: Stage, task: int, split: str) -> Clips:
    """A task's clips with the features that were stored, or, the first time, made and stored now."""
    clips = tester.stored(task, split)
    if clips is None:
        clips = tester.gallery(task, split, stage.seen_as(task))
        tester.keep(clips, stage)
    return clips
