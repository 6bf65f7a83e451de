"""The tables and figures of BMU-MoCo (Gao et al., NeurIPS 2022), and the claim of one over all orders of a stream."""

from dataclasses import replace

from kinoray.papers.claims import Claim, above, higher, lower, peak_inside
from kinoray.papers.entries import GFLOP, KEPT, LOSS_FALL, CurveEntry, Entry, MethodRow, TableEntry, at_lower_rates
from kinoray.streams.orders import ALL

BMU = "Gao et al., BMU-MoCo, NeurIPS 2022"

REAL = "sprites-cvlm"
SPLITS = ("1", "2", "3", "7", "8", "9", "10")
"""Of real drawings with names. Split 0 chose what all methods share and what each has of its own, on 4 to 6 the plain
learner was tried with more epochs."""

BASE = MethodRow(label="Base-MoCo", method="base_moco")
SLOWER = at_lower_rates(BASE)
"""Momentum pulls slow the encoder down, so a gain over Base-MoCo is one over the best of these, too."""
LWF = MethodRow(label="LwF", method="lwf:base_moco")
ER_RING = MethodRow(label="ER-ring", method="er_ring:base_moco")
DER = MethodRow(label="DER", method="der:base_moco")
CO2L = MethodRow(label="Co2L", method="co2l:base_moco")
LUMP = MethodRow(label="LUMP", method="lump:base_moco")
LOCAL = MethodRow(label="BMU-MoCo (local)", method="bmu_moco", settings={"variant": "local"})
BMU_MOCO = MethodRow(label="BMU-MoCo", method="bmu_moco")
JOINT = MethodRow(label="joint training", method="base_moco", joint=True)
ZERO_SHOT = MethodRow(label="zero-shot", method="base_moco", zero_shot=True)

OTHERS = (LWF, ER_RING, DER, CO2L, LUMP)
RIVALS = (BASE, *SLOWER, *OTHERS)
IN_FIGURES = (BASE, ER_RING, CO2L)
"""The rivals in the figures of single tasks."""


def best_of_all(score: str) -> tuple[Claim, ...]:
    """What the paper says of its main table and of both in the supplement: better than every other method."""
    return (
        higher(score, BMU_MOCO, RIVALS, f"BMU-MoCo has the best overall {score}."),
        lower("FR", BMU_MOCO, RIVALS, "BMU-MoCo has the best overall FR."),
        higher("HM", BMU_MOCO, RIVALS, "BMU-MoCo has the best overall HM."),
    )


def best_on_each_task(score: str) -> tuple[Claim, ...]:
    """The same, task by task; of the last task nothing is forgotten."""
    return (
        *(higher(f"{k}:{score}", BMU_MOCO, RIVALS, f"BMU-MoCo has the best {score} on task {k}.") for k in range(1, 6)),
        *(lower(f"{k}:FR", BMU_MOCO, RIVALS, f"BMU-MoCo has the best FR on task {k}.") for k in range(1, 5)),
    )


def slowest_drop(tasks: tuple[int, ...]) -> tuple[Claim, ...]:
    """What the paper says of the figures of single tasks."""
    return tuple(lower(f"{k}:FR", BMU_MOCO, IN_FIGURES, f"On task {k} BMU-MoCo drops most slowly.") for k in tasks)


TABLE1 = TableEntry(
    title="BMU-MoCo and six baselines: R@1 and FR of every task, overall R@1, FR and HM",
    place=f"{BMU}, Table 1",
    rows=(*RIVALS, LOCAL, BMU_MOCO, JOINT, ZERO_SHOT),
    stream=REAL,
    worlds=SPLITS,
    table="bmu-table1",
    tuned=True,
    equal_flops="bmu_moco",
    beside=(GFLOP, KEPT),
    seeds=1,
    published=(
        "BMU-MoCo has the best R@1 and FR on all tasks and is ahead of the second best by 2.93 points of overall R@1, "
        "11.85 of FR and 1.78 of HM; its local form beats all baselines, too; what distillation and memory gain over "
        "Base-MoCo is limited."
    ),
    source="Table 1 and Sec. 4.2; on task 5 the table itself has the local form ahead, 41.94 against 41.83",
    claims=(
        *best_of_all("R@1"),
        *best_on_each_task("R@1"),
        higher("R@1", LOCAL, RIVALS, "BMU-MoCo (local) beats all baselines in R@1."),
        lower("FR", LOCAL, RIVALS, "BMU-MoCo (local) beats all baselines in FR."),
        higher("HM", LOCAL, RIVALS, "BMU-MoCo (local) beats all baselines in HM."),
        lower("HM", BASE, OTHERS, "Every other method gains over Base-MoCo in HM."),
    ),
)

NO_BMU = {
    "local": replace(BASE, label="Base-MoCo (local, no BMU)"),
    "global": MethodRow(label="global, no BMU", method="bmu_moco", settings={"variant": "global_no_bmu"}),
    "both": MethodRow(label="local + global, no BMU", method="bmu_moco", settings={"variant": "both_no_bmu"}),
}
WITH_BMU = {
    "local": replace(LOCAL, label="BMU local"),
    "global": MethodRow(label="BMU global", method="bmu_moco", settings={"variant": "global"}),
    "both": replace(BMU_MOCO, label="BMU local + global"),
}
BOTH = "Both families are better than one"

TABLE2 = TableEntry(
    title="BMU-MoCo's parts: local and global momentum encoders, with and without the update",
    place=f"{BMU}, Table 2",
    rows=(*NO_BMU.values(), *SLOWER, *WITH_BMU.values()),
    stream=REAL,
    worlds=SPLITS,
    seeds=1,
    table="bmu-table2",
    published=(
        "The update brings remarkable improvements (HM 37.05 against 34.67 with local encoders), both families are "
        "better than one of them, and with the update the more so (HM 37.59 with both)."
    ),
    source="Table 2 and Sec. 4.3",
    claims=(
        *(
            higher(metric, WITH_BMU[which], without, f"With {which} encoders the update helps: {metric}.")
            for which, without in (("local", (NO_BMU["local"], *SLOWER)), ("both", NO_BMU["both"]))
            for metric in ("R@1", "HM")
        ),
        *(
            higher(metric, rows["both"], (rows["local"], rows["global"]), f"{BOTH}, {how} the update: {metric}.")
            for how, rows in (("without", NO_BMU), ("with", WITH_BMU))
            for metric in ("R@1", "HM")
        ),
    ),
)

ENSEMBLE = MethodRow(label="BMU-MoCo-ensemble", method="bmu_moco", settings={"variant": "ensemble"})
FIXED = MethodRow(label="BMU-MoCo-fixed", method="bmu_moco", settings={"variant": "fixed"})

TABLE3 = TableEntry(
    title="BMU-MoCo against two other uses of its momentum encoders",
    place=f"{BMU}, Table 3",
    rows=(BASE, *SLOWER, ENSEMBLE, FIXED, BMU_MOCO),
    stream=REAL,
    worlds=SPLITS,
    seeds=1,
    table="bmu-table3",
    published=(
        "Merging the averages once at the end of a task (ensemble) is better than Base-MoCo and far behind BMU-MoCo; "
        "pulling towards averages that stand still within a task (fixed) forgets least and learns less."
    ),
    source="Table 3 and Sec. 4.4; the row of ensemble equals the third row of Table 2 digit for digit",
    claims=(
        higher("HM", ENSEMBLE, (BASE, *SLOWER), "Ensemble is better than Base-MoCo: HM."),
        higher("HM", BMU_MOCO, ENSEMBLE, "BMU-MoCo is better than ensemble: HM."),
        higher("R@1", BMU_MOCO, FIXED, "BMU-MoCo is better than fixed: R@1."),
        higher("HM", BMU_MOCO, FIXED, "BMU-MoCo is better than fixed: HM."),
        lower("FR", FIXED, (BASE, ENSEMBLE, BMU_MOCO), "Fixed forgets least: FR."),
        lower("R@1_current", FIXED, BMU_MOCO, "Fixed learns the current task less well than BMU-MoCo."),
    ),
)

FIG1 = TableEntry(
    title="Base-MoCo forgets: R@1 on each task right after it was learned, and of the final model",
    place=f"{BMU}, Figure 1(a)",
    rows=(BASE,),
    stream=REAL,
    worlds=SPLITS,
    seeds=1,
    picture="current",
    drawn_tasks=(1, 2, 3, 4),
    table="bmu-table1",
    published="Current models have great R@1; that of the final one drops significantly on tasks 1 to 4.",
    source="Sec. 1; the heights follow from R@1 and FR of Table 1",
    claims=tuple(
        above(f"{k}:FR", BASE, f"On task {k} the final model is worse than the current one was.") for k in range(1, 5)
    ),
)

FIG3 = TableEntry(
    title="R@1 on the first two tasks after each task",
    place=f"{BMU}, Figure 3",
    rows=(BASE, ER_RING, CO2L, BMU_MOCO),
    stream=REAL,
    worlds=SPLITS,
    seeds=1,
    picture="task_curves",
    drawn_tasks=(1, 2),
    table="bmu-table1",
    published="On both tasks BMU-MoCo drops most slowly.",
    source="Sec. 4.2; of the figure itself only the text is at hand, the ends follow from Table 1",
    claims=slowest_drop((1, 2)),
)

SUPP_FIG1 = replace(
    FIG3,
    title="R@1 on every task after each task",
    place=f"{BMU}, supplement, Figure 1",
    drawn_tasks=(1, 2, 3, 4, 5),
    published="BMU-MoCo is better than its competitors on all tasks, drops most slowly and learns current tasks well.",
    source="Supplement, Sec. 2; the ends follow from Table 1",
    claims=(
        *slowest_drop((1, 2, 3, 4)),
        *(higher(f"{k}:R@1", BMU_MOCO, IN_FIGURES, f"BMU-MoCo has the best R@1 on task {k}.") for k in range(1, 6)),
    ),
)

TOO_BIG = "Too big an m_hat (0.999, 1) reviews too little"

FIG4 = CurveEntry(
    title="BMU-MoCo: overall R@1 (current), overall R@1 (final) and HM over m_hat, m fixed",
    place=f"{BMU}, Figure 4",
    sweeps={"bmu_moco": "bmu-fig4"},
    stream=REAL,
    worlds=SPLITS,
    seeds=1,
    over="m_hat",
    panels={"R@1_current": "Overall R@1 (current)", "R@1": "Overall R@1 (final)", "HM": "Overall HM"},
    beside=("FR",),
    published=(
        "m_hat can be neither too big nor too small. Too big (0.999 and 1), what the momentum encoders keep is not "
        "well reviewed; too small (0.9), learning by gradient suffers, which makes overall R@1 (current) and HM "
        "bad, while FR is lower (14.95, against 22.63 at 0.99 in Table 1). The paper takes 0.99: R@1 (final) "
        "35.47, HM 37.59."
    ),
    source="Sec. 4.3 and Table 1; of the figure itself only the text is at hand, so no value is read off it",
    claims=(
        peak_inside("HM", "HM is best where m_hat is neither too big nor too small."),
        higher("R@1", 0.99, (0.999, 1.0), f"{TOO_BIG}: R@1 (final) is lower than at 0.99."),
        higher(
            "R@1_current", 0.99, 0.9, "Too small an m_hat (0.9) hinders learning: R@1 (current) is lower than at 0.99."
        ),
        higher("HM", 0.99, 0.9, "HM at 0.9 is lower than at 0.99, too."),
        lower("FR", 0.9, 0.99, "FR at 0.9 is lower (better) than at 0.99.", by=22.63 - 14.95),
    ),
)

MEMORIES = {pairs: f"ER-ring, {pairs} pairs" for pairs in (10, 20, 45, 85, 210, 425)}
"""From 1 % to 50 % of moving-conflict's average task; 85 is the 10 % of the paper."""

FIG5 = TableEntry(
    title="ER-ring by the size of its memory, against BMU-MoCo without one",
    place=f"{BMU}, Figure 5",
    rows=(
        BASE,
        *(replace(ER_RING, label=label, settings={"memory_capacity": pairs}) for pairs, label in MEMORIES.items()),
        BMU_MOCO,
    ),
    picture="memory",
    beside=(KEPT,),
    published=(
        "BMU-MoCo, whose global momentum encoders take 0.5 GB, as much as 0.05 % of the videos, is better in overall "
        "R@1 and FR than ER-ring with any memory up to 10 % of the average data set (200 GB)."
    ),
    source="Sec. 4.4; of the figure itself only the text is at hand",
    claims=tuple(
        claim(metric, BMU_MOCO, label, f"BMU-MoCo is better than ER-ring with {pairs} pairs: {metric}.")
        for pairs, label in MEMORIES.items()
        if pairs <= 85
        for metric, claim in (("R@1", higher), ("FR", lower))
    ),
)

SUPP_FIG2 = TableEntry(
    title="BMU-MoCo's training loss on two tasks",
    place=f"{BMU}, supplement, Figure 2",
    rows=(BMU_MOCO,),
    picture="losses",
    drawn_tasks=(2, 3),
    published="The loss converges on ActivityNet and on MSR-VTT, after some 3,000 iterations.",
    source="Supplement, Sec. 2; of the figure itself only the text is at hand; tested is that the loss falls",
    claims=tuple(
        above(
            f"{k}:{LOSS_FALL}", BMU_MOCO, f"On task {k} the loss falls, from its first tenth of the steps to its last."
        )
        for k in (2, 3)
    ),
)


def _other_score(score: str, number: int) -> TableEntry:
    """Table 1 with another score (the supplement's)."""
    return replace(
        TABLE1,
        title=TABLE1.title.replace("R@1", score),
        place=f"{BMU}, supplement, Table {number}",
        table=f"bmu-supp-table{number}",
        score=score,
        tuned=False,
        equal_flops="",
        beside=(),
        published=f"BMU-MoCo outperforms all competitors by a large margin, especially in overall {score}, FR and HM.",
        source="Supplement, Sec. 2",
        claims=best_of_all(score),
    )


# Table 4: unsupervised continual learning on pictures.

MULTI_TASK = MethodRow(label="Multi-Task", method="simsiam", joint=True)
FINETUNE = MethodRow(label="Finetune", method="simsiam")
PNN = MethodRow(label="PNN", method="pnn")
SI = MethodRow(label="SI", method="si:simsiam", settings={"importance_form": "ucl", "clip_value": 1.0})
"""As the benchmark's code has it, which made the paper's numbers of this row."""
PICTURE_DER = MethodRow(label="DER", method="der:simsiam")
PICTURE_LUMP = MethodRow(label="LUMP", method="lump:simsiam")
PICTURE_BMU_MOCO = MethodRow(label="BMU-MoCo", method="bmu_moco_views")
FINETUNE_MOCO = MethodRow(label="Finetune (MoCo)", method="moco")
"""Ours: the paper compares BMU-MoCo, which learns by MoCo, with methods that learn by SimSiam. What MoCo reaches by
itself is none of BMU-MoCo's merit, so it is a rival like the others."""

FORGETTING_BUT_SI = (FINETUNE, PICTURE_DER, PICTURE_LUMP, FINETUNE_MOCO)
"""PNN forgets nothing by its construction; the paper gives no number."""

PICTURE_BEST = higher("accuracy", PICTURE_BMU_MOCO, (*FORGETTING_BUT_SI, PNN, SI), "BMU-MoCo has the best accuracy.")
PICTURE_SOURCE = (
    "Table 4 and Sec. 4.4; other rows' numbers are those of the benchmark's paper, with SimSiam; Finetune (MoCo), a "
    "rival of our own, is BMU-MoCo's learner alone; forgetting is BWF, `released` takes as many neighbours as tasks "
    "were learned, as the benchmark's code does"
)

PICTURE_ROWS = (MULTI_TASK, FINETUNE, PNN, SI, PICTURE_DER, PICTURE_LUMP, PICTURE_BMU_MOCO, FINETUNE_MOCO)
AMONG_ALL = {"knn_bank": "all"}
"""On `digits-5`: two classes of digits alone are told apart by every row, and say nothing on any."""

TABLE4 = TableEntry(
    title="BMU-MoCo and five others on pictures: accuracy and forgetting",
    place=f"{BMU}, Table 4, Split CIFAR-10",
    rows=tuple(
        replace(row, settings={**row.settings, **AMONG_ALL}, paper_settings={"knn_bank": "task"})
        for row in PICTURE_ROWS
    ),
    score="accuracy",
    overall=("accuracy", "BWF", "accuracy_released", "BWF_released"),
    drawn=("accuracy", "BWF"),
    table="bmu-table4-cifar10",
    tables={"ucl-cifar100": "bmu-table4-cifar100", "ucl-tinyimagenet": "bmu-table4-tinyimagenet"},
    stream="digits-5:9",
    paper_stream="ucl-cifar10",
    tuned=True,
    budget="bmu-table4",
    seeds=5,
    published=(
        "BMU-MoCo outperforms all competitors: 92.80 against 92.75 of SI, the second best, with forgetting of 1.98, "
        "where SI alone has less (1.81)."
    ),
    source=PICTURE_SOURCE,
    claims=(
        PICTURE_BEST,
        lower("BWF", PICTURE_BMU_MOCO, FORGETTING_BUT_SI, "BMU-MoCo forgets less than all others but SI."),
    ),
)

TABLE4_CIFAR100 = replace(
    TABLE4,
    rows=PICTURE_ROWS,
    place=f"{BMU}, Table 4, Split CIFAR-100",
    table="bmu-table4-cifar100",
    tables={"ucl-cifar10": "bmu-table4-cifar10", "ucl-tinyimagenet": "bmu-table4-tinyimagenet"},
    stream="shapes-ucl-5:9",
    search_seeds=2,
    paper_stream="ucl-cifar100",
    published=(
        "BMU-MoCo outperforms all competitors: 83.81 against 82.30 of LUMP, the second best, and forgets least, 3.69 "
        "against 4.17. On Split Tiny-ImageNet it does so as well, 77.45 and 3.39."
    ),
    claims=(PICTURE_BEST, lower("BWF", PICTURE_BMU_MOCO, (*FORGETTING_BUT_SI, SI), "BMU-MoCo forgets least.")),
)

# What the order of the tasks decides: no figure of the paper, but its claim over all orders of a stream.

ORDERS = TableEntry(
    title="Orders of five tasks: HM, what training on one task does to another, and who changes places",
    place=f"after {BMU}, Table 1",
    stream=f"{REAL}:1",  # split 0 has chosen the recipe
    rows=(BASE, SLOWER[0], LOCAL, BMU_MOCO, LWF, ER_RING, DER, LUMP),  # half the rate has the best HM on other splits
    picture="orders",
    orders=ALL,
    seeds=1,
    published="BMU-MoCo has the best overall FR and HM, on one order of the tasks; other orders are not looked at.",
    source="Table 1 and Sec. 4.2",
    claims=(
        *(higher("HM", BMU_MOCO, row, f"BMU-MoCo is better than {row.label}: HM.") for row in (BASE, SLOWER[0])),
        *(lower("FR", BMU_MOCO, row, f"BMU-MoCo forgets less than {row.label}: FR.") for row in (BASE, SLOWER[0])),
        higher("HM", BMU_MOCO, (LWF, ER_RING, DER, LUMP), "BMU-MoCo is better than distillation and memory: HM."),
    ),
)

ENTRIES: dict[str, Entry] = {
    "bmu-table1": TABLE1,
    "bmu-table2": TABLE2,
    "bmu-table3": TABLE3,
    "bmu-fig1": FIG1,
    "bmu-fig3": FIG3,
    "bmu-fig4": FIG4,
    "bmu-fig5": FIG5,
    "bmu-supp-table1": _other_score("R@5", 1),
    "bmu-supp-table2": _other_score("R@10", 2),
    "bmu-supp-fig1": SUPP_FIG1,
    "bmu-supp-fig2": SUPP_FIG2,
    "bmu-table4": TABLE4,
    "bmu-table4-cifar100": TABLE4_CIFAR100,
    "orders": ORDERS,
}
