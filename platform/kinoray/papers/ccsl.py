"""The tables and the figure of CCSL (Hu et al., BMVC 2021).

The embedded `shapes-T` stand in for CIFAR-100 in T tasks, `shapes-10` also for ImageNet-Sub in ten.
"""

from dataclasses import replace
from typing import Any

from kinoray.papers.claims import above, higher, lower
from kinoray.papers.entries import Entry, MethodRow, TableEntry

PAPER = "Hu et al., CCSL, BMVC 2021"
STEPS = {f"T={steps}": str(steps) for steps in (1, 2, 5, 10)}
LEARNERS = {"MoCo": "moco", "SimCLR": "simclr", "InsDisc": "insdisc"}
TWO, PAPER_TWO = "shapes-2:9", "cssl-cifar100-2"
TEN = "shapes-10:9"

FINETUNING = MethodRow(label="Finetuning", method="moco")
REPLAY = MethodRow(label="Simple replay", method="simple_replay:moco")
CCSL = MethodRow(label="CCSL", method="ccsl:moco")
JOINT = MethodRow(label="MoCo (joint)", method="moco", joint=True)

OVERALL: dict[str, Any] = {"score": "accuracy", "overall": ("accuracy", "accuracy_knn", "BWF")}
ON_TWO: dict[str, Any] = {"score": "accuracy", "stream": TWO, "paper_stream": PAPER_TWO}

RIVALS = (FINETUNING, REPLAY)
LARGER = "With fewer classes at a time the margin over finetuning is larger"

TABLE1 = TableEntry(
    title="CCSL, simple replay and finetuning over 1, 2, 5 and 10 tasks",
    place=f"{PAPER}, Table 1",
    rows=(FINETUNING, REPLAY, CCSL),
    score="accuracy",
    across=STEPS,
    picture="steps",
    table="ccsl-table1",
    stream="shapes-X:9",
    paper_stream="cssl-cifar100-X",
    published=(
        "CCSL is ahead of both others in each column, by 0.98 to 2.72 points over finetuning; the fewer classes are "
        "learned at a time, the larger is that margin."
    ),
    source="Table 1 and Sec. 4.2; by the table itself the margin over finetuning is 0.98, 2.72, 1.70",
    claims=(
        *(
            higher(column, CCSL, RIVALS, f"CCSL has the best accuracy with {column}.")
            for column in ("T=2", "T=5", "T=10")
        ),
        *(lower(f"T=2 - {fewer}", CCSL, FINETUNING, f"{LARGER}: {fewer} against T=2.") for fewer in ("T=5", "T=10")),
    ),
)

TABLE2 = TableEntry(
    title="CCSL, simple replay, finetuning and joint training on the longest stream",
    place=f"{PAPER}, Table 2",
    rows=(JOINT, FINETUNING, REPLAY, CCSL),
    **OVERALL,
    table="ccsl-table2-sub",
    tables={"cssl-imagenet": "ccsl-table2-full"},
    stream=TEN,
    paper_stream="cssl-imagenet-sub",
    tuned=True,
    published="CCSL has the best accuracy after ten tasks of ImageNet-Sub, 55.48 against 52.62 of finetuning.",
    source="Table 2 and Sec. 4.2",
    claims=(
        higher("accuracy", CCSL, FINETUNING, "CCSL is better than finetuning."),
        higher("accuracy", CCSL, REPLAY, "CCSL is better than simple replay."),
    ),
)

TABLE3 = TableEntry(
    title="CCSL with MoCo, SimCLR and InsDisc, two tasks",
    place=f"{PAPER}, Table 3",
    rows=(
        MethodRow(label="Origin (joint)", method="X", joint=True),
        replace(FINETUNING, method="X"),
        replace(REPLAY, method="simple_replay:X"),
        replace(CCSL, method="ccsl:X"),
    ),
    across=LEARNERS,
    table="ccsl-table3",
    **ON_TWO,
    published="CCSL improves SimCLR and InsDisc, too: 55.68 against 55.40 and 49.44 against 49.22 of simple replay.",
    source="Table 3 and Sec. 4.2; MoCo trained on all is 57.64 here, 57.63 in Table 1",
    claims=tuple(higher(learner, CCSL, RIVALS, f"CCSL improves {learner}, too.") for learner in ("SimCLR", "InsDisc")),
)

RANDOM = replace(CCSL, settings={"exemplars": "random"})
NEITHER = replace(REPLAY, label="no KD, no extra queue")
KD = replace(CCSL, label="KD only", settings={**RANDOM.settings, "extra_queue": 0})
EXTRA = replace(CCSL, label="extra queue only", settings={**RANDOM.settings, "distill_weight": 0.0})
BOTH = replace(RANDOM, label="KD + extra queue")

TABLE4 = TableEntry(
    title="CCSL's parts on random exemplars: distillation and the extra queue",
    place=f"{PAPER}, Table 4",
    rows=(NEITHER, KD, EXTRA, BOTH),
    table="ccsl-table4",
    **(OVERALL | ON_TWO),
    published=(
        "Distillation improves simple replay by 0.18 points, the extra queue by 0.29, both together by 0.47, all on "
        "exemplars that were drawn at random."
    ),
    source="Table 4 and Sec. 4.3; the first row is simple replay, digit for digit",
    claims=tuple(
        higher("accuracy", row, NEITHER, f"{what} improves simple replay.")
        for what, row in (("Distillation", KD), ("The extra queue", EXTRA), ("Both together", BOTH))
    ),
)

SIZES = {size: f"extra queue {size}" for size in (32, 64, 128, 256, 512)}

TABLE5 = TableEntry(
    title="The extra queue alone by its size, on random exemplars",
    place=f"{PAPER}, Table 5",
    rows=tuple(
        replace(EXTRA, label=label, settings={**EXTRA.settings, "extra_queue": size}) for size, label in SIZES.items()
    ),
    table="ccsl-table5",
    **(OVERALL | ON_TWO),
    published="From 32 keys to 512 accuracy first rises and then falls, 55.74, 55.83 at 128, 55.66.",
    source="Table 5 and Sec. 4.3, without distillation",
    claims=(
        higher("accuracy", SIZES[128], SIZES[32], "128 keys are better than 32."),
        higher("accuracy", SIZES[128], SIZES[512], "128 keys are better than 512."),
        higher("accuracy", SIZES[128], tuple(SIZES[size] for size in (32, 64, 256, 512)), "128 keys are best."),
    ),
)

FEW, HALF, RIGHT, DOUBLE = "K = C/10", "K = C/2", "K = C", "K = 2C"
"""Clusters by the classes of a step: 1, 5, 10 and 20 in the paper."""


def _table6(clusters: dict[str, int], stream: str, note: str) -> TableEntry:
    """CCSL by its number of clusters, beside the paper's rows with as many for each class of a step."""
    gaps = {FEW: "Far too few clusters", DOUBLE: "Twice as many clusters as classes"}
    return TableEntry(
        title="CCSL by the number K of its clusters, C classes a step",
        place=f"{PAPER}, Table 6",
        rows=tuple(replace(CCSL, label=label, settings={"clusters": k}) for label, k in clusters.items()),
        **OVERALL,
        table="ccsl-table6",
        stream=stream,
        paper_stream="cssl-imagenet-sub",
        published=(
            "When K is too far from the real number of classes, 10 a step, accuracy falls: 54.54 with K = 1, 55.44 "
            "with 5, 55.48 with 10, 54.86 with 20."
        ),
        source=f"Table 6 and Sec. 4.3; {note}; as many exemplars a cluster, so that more clusters keep more pictures",
        claims=tuple(
            lower("accuracy", label, RIGHT, f"{words} are worse than as many.")
            for label, words in gaps.items()
            if label in clusters
        ),
    )


TABLE6 = _table6({HALF: 1, RIGHT: 2, DOUBLE: 4}, TEN, "a step of shapes-10 has 2 classes, so a tenth cannot be")
TABLE6_TWO = _table6(
    {FEW: 1, HALF: 5, RIGHT: 10, DOUBLE: 20},
    TWO,
    "a step of shapes-2 has 10 classes as in the paper, but there are two",
)

TRAINED_ON_ALL, ONE_BY_ONE = "joint training", "two tasks"

FIG1A = TableEntry(
    title="What several learners lose when the classes come in two tasks",
    place=f"{PAPER}, Figure 1(a)",
    rows=(
        MethodRow(label=TRAINED_ON_ALL, method="X", joint=True),
        MethodRow(label=ONE_BY_ONE, method="X"),
    ),
    across=LEARNERS,
    **ON_TWO,
    published="The performance of several self-supervised methods decreases when they learn a new task.",
    source="Figure 1(a) and Sec. 1; of the figure itself only the text is at hand; the learners here are Table 3's",
    claims=tuple(higher(learner, TRAINED_ON_ALL, ONE_BY_ONE, f"{learner} loses by it.") for learner in LEARNERS),
)

FIG1B = replace(
    TABLE1,
    title="MoCo by the number of tasks",
    place=f"{PAPER}, Figure 1(b)",
    rows=(FINETUNING,),
    published="The more tasks, the more MoCo loses: 57.63 with one task, then 55.14, 51.08 and 48.40 with ten.",
    source="Figure 1(b) and Sec. 1; the numbers are those of Table 1",
    claims=tuple(
        above(f"{fewer} - {more}", FINETUNING, f"{more} is worse than {fewer}.")
        for fewer, more in (("T=1", "T=2"), ("T=2", "T=5"), ("T=5", "T=10"))
    ),
)

ENTRIES: dict[str, Entry] = {
    "ccsl-fig1a": FIG1A,
    "ccsl-fig1b": FIG1B,
    "ccsl-table1": TABLE1,
    "ccsl-table2": TABLE2,
    "ccsl-table3": TABLE3,
    "ccsl-table4": TABLE4,
    "ccsl-table5": TABLE5,
    "ccsl-table6": TABLE6,
    "ccsl-table6-two": TABLE6_TWO,
}
