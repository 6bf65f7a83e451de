"""`cvlm`: the five data sets of continual video-language modelling (BMU-MoCo, Gao et al., NeurIPS 2022, Sec. 4.1).

VATEX, ActivityNet Captions, MSR-VTT (1k-A), DiDeMo, MSVD, in this order; paragraphs for ActivityNet and DiDeMo. Every
task is tested in its own gallery, R@1 with forgetting rate and harmonic mean. Every caption of a VATEX or MSVD test
video is a query (the paper does not say). The argument swaps a set for another of its family, as in
`cvlm:vatex=vatex-1k5,msrvtt=msrvtt-7k`.

The sets must be prepared: `kinoray data prepare NAME --root DIR`.
"""

from kinoray.config import Recipe
from kinoray.datasets.prepared import manifest_of, need_prepared
from kinoray.datasets.readers import data_sets
from kinoray.errors import UsageError
from kinoray.streams import Stream, TaskData
from kinoray.streams.task_manifests import options

NAMES = ("cvlm",)
PUBLISHED = True

TASKS = ("vatex", "activitynet", "msrvtt", "didemo", "msvd")
RECIPE = Recipe(max_tokens=64)
"""The engine's defaults are the paper's: Adam, 5e-5 then 5e-6, batch 48, 10 epochs, 384 px. 64 tokens as two of the
sets have paragraphs; our choice."""


def load(name: str, argument: str) -> Stream:
    """The stream, over prepared manifests.

    Raises: UsageError naming the sets that are not prepared, or for a set of another family.
    """
    chosen = options(name, argument, {task: task for task in TASKS})
    families = data_sets()
    for task, data_set in chosen.items():
        if families.get(data_set) != families[task]:
            known = ", ".join(other for other, family in families.items() if family == families[task])
            raise UsageError(f"{name}: {task}={data_set} is no form of {task}. Choose one of {known}.")
    need_prepared(chosen.values())
    tasks = tuple(TaskData(task, manifest_of(data_set), data_set) for task, data_set in chosen.items())
    return Stream(name, "cvlm", tasks, RECIPE, "vit-bert")
