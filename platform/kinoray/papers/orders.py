"""What the order of the tasks decides: no figure of a paper, but the claim of one over all orders of a stream."""

from dataclasses import replace

from kinoray.papers.bmu_moco import BASE, BMU, BMU_MOCO, DER, ER_RING, LOCAL, LUMP, LWF
from kinoray.papers.claims import higher, lower
from kinoray.papers.entries import Entry, TableEntry
from kinoray.streams.orders import ALL

SLOWER = replace(BASE, label="Base-MoCo at half the rate", control="rate/2")
"""Of the parts of the rate that were tried on other splits the one with the best HM."""

ORDERS = TableEntry(
    title="All orders of five tasks: HM, what training on one task does to another, and who changes places",
    place=f"after {BMU}, Table 1",
    stream="sprites-cvlm",
    rows=(BASE, SLOWER, LOCAL, BMU_MOCO, LWF, ER_RING, DER, LUMP),
    picture="orders",
    orders=ALL,
    seeds=1,
    published="BMU-MoCo has the best overall FR and HM, on one order of the tasks; other orders are not looked at.",
    source="Table 1 and Sec. 4.2",
    claims=(
        *(higher("HM", BMU_MOCO, row, f"BMU-MoCo is better than {row.label}: HM.") for row in (BASE, SLOWER)),
        *(lower("FR", BMU_MOCO, row, f"BMU-MoCo forgets less than {row.label}: FR.") for row in (BASE, SLOWER)),
        higher("HM", BMU_MOCO, (LWF, ER_RING, DER, LUMP), "BMU-MoCo is better than distillation and memory: HM."),
    ),
)

ENTRIES: dict[str, Entry] = {"orders": ORDERS}
