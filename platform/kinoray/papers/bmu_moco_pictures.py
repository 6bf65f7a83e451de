"""Table 4 of BMU-MoCo (Gao et al., NeurIPS 2022): unsupervised continual learning on pictures."""

from dataclasses import replace

from kinoray.papers.bmu_moco import BMU
from kinoray.papers.claims import higher, lower
from kinoray.papers.entries import Entry, MethodRow, TableEntry

MULTI_TASK = MethodRow(label="Multi-Task", method="simsiam", joint=True)
FINETUNE = MethodRow(label="Finetune", method="simsiam")
PNN = MethodRow(label="PNN", method="pnn")
SI = MethodRow(label="SI", method="si:simsiam", settings={"importance_form": "ucl", "clip_value": 1.0})
"""As the benchmark's code has it, which made the paper's numbers of this row."""
DER = MethodRow(label="DER", method="der:simsiam")
LUMP = MethodRow(label="LUMP", method="lump:simsiam")
BMU_MOCO = MethodRow(label="BMU-MoCo", method="bmu_moco_views")
FINETUNE_MOCO = MethodRow(label="Finetune (MoCo)", method="moco")
"""Ours: the paper compares BMU-MoCo, which learns by MoCo, with methods that learn by SimSiam. What MoCo reaches by
itself is none of BMU-MoCo's merit, so it is a rival like the others."""

FORGETTING_BUT_SI = (FINETUNE, DER, LUMP, FINETUNE_MOCO)
"""PNN forgets nothing by its construction; the paper gives no number."""

BEST = higher("accuracy", BMU_MOCO, (*FORGETTING_BUT_SI, PNN, SI), "BMU-MoCo has the best accuracy.")
SOURCE = (
    "Table 4 and Sec. 4.4; other rows' numbers are those of the benchmark's paper, with SimSiam; Finetune (MoCo), a "
    "rival of our own, is BMU-MoCo's learner alone; forgetting is BWF, `released` takes as many neighbours as tasks "
    "were learned, as the benchmark's code does"
)

ROWS = (MULTI_TASK, FINETUNE, PNN, SI, DER, LUMP, BMU_MOCO, FINETUNE_MOCO)
AMONG_ALL = {"knn_bank": "all"}
"""On `digits-5`: two classes of digits alone are told apart by every row, and say nothing on any."""

TABLE4 = TableEntry(
    title="BMU-MoCo and five others on pictures: accuracy and forgetting",
    place=f"{BMU}, Table 4, Split CIFAR-10",
    rows=tuple(
        replace(row, settings={**row.settings, **AMONG_ALL}, paper_settings={"knn_bank": "task"}) for row in ROWS
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
    source=SOURCE,
    claims=(
        BEST,
        lower("BWF", BMU_MOCO, FORGETTING_BUT_SI, "BMU-MoCo forgets less than all others but SI."),
    ),
)

TABLE4_CIFAR100 = replace(
    TABLE4,
    rows=ROWS,
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
    claims=(BEST, lower("BWF", BMU_MOCO, (*FORGETTING_BUT_SI, SI), "BMU-MoCo forgets least.")),
)

ENTRIES: dict[str, Entry] = {"bmu-table4": TABLE4, "bmu-table4-cifar100": TABLE4_CIFAR100}
