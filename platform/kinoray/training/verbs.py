"""What the verbs of a method must give back, checked where the engine uses it: one line that names the verb, what came
and what is expected. Nothing here waits for an accelerator."""

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
from torch import Tensor, nn

from kinoray.errors import RunFailed, UsageError
from kinoray.method import Batch, Needs, ParamGroup, StepOutput


def checked_needs(needs: Any) -> Needs:
    """What `needs` gave, asked before a run starts. Raises: UsageError where it is no `Needs`."""
    if not isinstance(needs, Needs):
        raise UsageError(_complaint("needs", kind(needs), "a Needs, as in `return Needs(views=2)`"))
    return needs


def checked_groups(groups: Any) -> dict[str, ParamGroup]:
    """What `param_groups` gave. Raises: RunFailed where it is no dict of groups of parameters by name."""
    if not isinstance(groups, dict):
        raise _wrong(
            "param_groups", kind(groups), 'a dict of ParamGroup, as in {"encoders": trainable(module, "name")}'
        )
    for name, group in groups.items():
        if not isinstance(group, ParamGroup):
            raise _wrong(
                "param_groups", f"{kind(group)} as group {name!r}", 'a ParamGroup, as in trainable(module, "x")'
            )
        if not isinstance(group.params, dict):
            raise _wrong("param_groups", f"{kind(group.params)} as parameters of {name!r}", "a dict {name: parameter}")
        strays = [key for key, value in group.params.items() if not isinstance(value, nn.Parameter)]
        if strays:
            came = f"{kind(group.params[strays[0]])} as {strays[0]!r} of group {name!r}"
            raise _wrong("param_groups", came, "an nn.Parameter")
    return groups


def checked_output(output: Any, groups: Collection[str], rows: Collection[int]) -> StepOutput:
    """What `loss` gave; `rows` are the numbers of rows that a carried tensor may have on this rank.

    Raises: RunFailed for anything else than a StepOutput, objectives that are no scalars with a gradient or do not bear
    the groups' names, values to log that are no scalars, and carried tensors with a gradient or other rows.
    """
    if not isinstance(output, StepOutput):
        raise _wrong("loss", kind(output), "a StepOutput, as in `return StepOutput(objectives=loss)`")
    objectives = output.objectives if isinstance(output.objectives, dict) else {"": output.objectives}
    if isinstance(output.objectives, dict) and set(objectives) != set(groups):
        raise _wrong("loss", f"objectives named {sorted(objectives)}", f"one per parameter group: {sorted(groups)}")
    for name, value in objectives.items():
        if value is None and name:
            continue  # a group that rests in this step
        title = f"objective {name!r}" if name else "an objective"
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise _wrong("loss", f"{kind(value)} as {title}", "a scalar tensor, summed over rows")
        if not value.requires_grad:
            raise _wrong("loss", f"{title} without a gradient", "a scalar computed from parameters of the groups")
    for name, value in output.log.items():
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise _wrong("loss", f"{kind(value)} to log as {name!r}", "a scalar tensor")
    for name, value in output.carry.items():
        if not isinstance(value, Tensor):
            raise _wrong("loss", f"{kind(value)} as carry {name!r}", "a tensor with one row per sample")
        if value.requires_grad:
            raise _wrong("loss", f"carry {name!r} with a gradient", "a detached tensor: write `.detach()`")
        if value.ndim == 0 or len(value) not in rows:
            expected = " or ".join(map(str, sorted(set(rows))))
            raise _wrong("loss", f"carry {name!r} of shape {tuple(value.shape)}", f"{expected} rows, as the batch has")
    return output


def rows_of(batch: Batch) -> set[int]:
    """Numbers of rows that a carried tensor may have on this rank: the current rows', the replayed ones', or both."""
    current, replayed = len(batch.ids), len(batch.replay.ids) if batch.replay is not None else 0
    return {current, replayed, current + replayed}


def checked_selection(ids: Any) -> list[int]:
    """Sample ids that `end_task` gave. Raises: RunFailed where they are no whole numbers."""
    if not isinstance(ids, Iterable) or isinstance(ids, (Tensor, str, dict)):
        raise _wrong("end_task", kind(ids), "the ids of samples to keep as a list of int, or () for none")
    chosen = list(ids)
    for value in chosen:
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
            raise _wrong("end_task", f"a list with {kind(value)}", "whole numbers: write `int(i)` or `.tolist()`")
    return [int(value) for value in chosen]


def checked_features(features: Any, rows: int, verb: str) -> Tensor:
    """What `embed_video` or `embed_text` gave. Raises: RunFailed where it has no row for each sample."""
    if not isinstance(features, Tensor):
        raise _wrong(verb, kind(features), f"a tensor of {rows} rows")
    if features.ndim == 0 or len(features) != rows:
        raise _wrong(verb, f"features of shape {tuple(features.shape)}", f"{rows} rows, one per sample")
    return features


def checked_scores(scores: Any, queries: int, videos: int) -> Tensor:
    """What `score` gave. Raises: RunFailed where it is not one number per query and video."""
    if not isinstance(scores, Tensor) or tuple(scores.shape) != (queries, videos):
        raise _wrong("score", kind(scores), f"a tensor of shape ({queries}, {videos}), queries by videos")
    return scores


def kind(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "None" if value is None else f"a {type(value).__name__}"


def _complaint(verb: str, came: str, expected: str) -> str:
    return f"The method's `{verb}` returned {came}; expected is {expected}."


def _wrong(verb: str, came: str, expected: str) -> RunFailed:
    return RunFailed(_complaint(verb, came, expected))
