"""What two towers keep of tasks still to come: continual fine-tuning with zero-shot retention, after ZSCL's tables."""

from kinoray.papers.bmu_moco import SPLITS
from kinoray.papers.claims import Claim, higher
from kinoray.papers.entries import GFLOP, KEPT, Entry, MethodRow, TableEntry, at_lower_rates

ZSCL = "Zheng et al., ZSCL, ICCV 2023"

FINE_TUNING = MethodRow(label="fine-tuning", method="avg_pool")
SLOWER = at_lower_rates(FINE_TUNING)
PLAIN = (FINE_TUNING, *SLOWER)
LWF = MethodRow(label="LwF", method="lwf:avg_pool")
VR_LWF = MethodRow(label="VR-LwF", method="vr_lwf:avg_pool")
WISE_FT = MethodRow(label="WiSE-FT", method="wise_ft:avg_pool")
MEAN = MethodRow(label="running mean", method="wise_ft:avg_pool", settings={"wise_share": 1.0, "mean_every": 10})
"""ZSCL's average of weights alone: from every tenth step, of the 140 that a task has."""
MAG_MAX = MethodRow(label="MagMax", method="mag_max:avg_pool")
ER_RING = MethodRow(label="ER-ring", method="er_ring:avg_pool")
DER = MethodRow(label="DER", method="der:avg_pool")
JOINT = MethodRow(label="joint training", method="avg_pool", joint=True)
ZERO_SHOT = MethodRow(label="zero-shot", method="avg_pool", zero_shot=True)

PUBLISHED_GAINS = {"LwF": (12.3, 8.8), "VR-LwF": (12.6, 9.2), "WiSE-FT": (7.7, 4.8)}
"""Of Transfer and Average over fine-tuning, on eleven sets of pictures."""


def _gains(row: MethodRow) -> tuple[Claim, Claim]:
    transfer, average = PUBLISHED_GAINS.get(row.label, (None, None))
    return (
        higher("Transfer", row, PLAIN, f"{row.label} keeps more zero-shot than fine-tuning.", by=transfer),
        higher("Average", row, PLAIN, f"{row.label} is better than fine-tuning over all tests.", by=average),
    )


COMPARED = (LWF, VR_LWF, WISE_FT, MEAN, MAG_MAX, ER_RING, DER)

RETENTION = TableEntry(
    title="Seven methods against plain fine-tuning: Transfer to tasks not yet learned, Average, Last",
    place=f"after {ZSCL}, MTIL in order I",
    rows=(*PLAIN, *COMPARED, JOINT, ZERO_SHOT),
    score="top1",
    overall=("Transfer", "Average", "Last", "FR"),
    drawn=("Transfer", "Average", "Last"),
    stream="sprites-retention",
    worlds=SPLITS,
    paper_stream="mtil",
    seeds=1,
    equal_flops="er_ring:avg_pool",
    beside=(GFLOP, KEPT),
    published=(
        "Fine-tuning loses zero-shot, 44.6 of 69.4 of Transfer, and every method keeps more: LwF 56.9, VR-LwF 57.2, "
        "WiSE-FT 52.3. Running means, MagMax and memory are not in this table."
    ),
    source="MTIL, order I, as the released notebook has it: pictures by class, and a test says which task it is of",
    claims=tuple(claim for row in COMPARED for claim in _gains(row)),
)

ENTRIES: dict[str, Entry] = {"retention": RETENTION}
