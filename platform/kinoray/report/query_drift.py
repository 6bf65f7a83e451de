"""Query drift: how far the first task's test queries move while later tasks are learned (FrameFusionMoE, Fig. 3)."""

from kinoray.errors import UsageError
from kinoray.evaluation.feature_files import Block
from kinoray.execution.feature_store import committed_features
from kinoray.runs.result import Result


def first_queries(result: Result) -> list[Block]:
    """The first task's test queries after each task, features (Q, D) as the method embeds them for its own videos.

    [] where the run kept none: its protocol has no growing gallery, or it had only one stage.
    """
    try:
        return committed_features(result.folder).queries(0)
    except UsageError:
        return []


def query_drift(result: Result) -> list[float]:
    """Mean of 1 - cosine between those queries after the first task and after each task so far; the first is 0.

    Ranges: in [0, 2]. [] where the run kept none.
    """
    from torch.nn.functional import cosine_similarity

    features = [block.features.flatten(1) for block in first_queries(result)]
    return [float((1 - cosine_similarity(now, features[0], dim=1)).mean()) for now in features]
