"""Published numbers of the papers' tables, as data files: facts, transcribed from the papers that they are named after.

bmu.csv and bmu_ucl.csv (its Table 4): Gao et al., BMU-MoCo, NeurIPS 2022. ctvr.csv: Zhao et al., FrameFusionMoE, SIGIR
2025. ccsl.csv: Hu et al., CCSL, BMVC 2021; C is the number of classes of a step, 10 in its Table 6.

bmu.csv is checked by arithmetic: means and sums of the cells of each task against the printed overall columns.
Where a row does not add up (overall columns of LwF, Co2L, LUMP, "global, no BMU", "local + global, no BMU", ensemble
and fixed), the slip is the paper's own.
"""

import csv
from pathlib import Path

FILES = ("bmu.csv", "bmu_ucl.csv", "ctvr.csv", "ccsl.csv", "video_moco.csv")


def published(table: str, score: str = "R@1") -> dict[str, dict[str, float]]:
    """Label of each row of a table -> column -> value, as the tables of `tables` name them; {} for a table unknown.

    score: that of the cells. Columns: "1:R@1", "1:FR", ... by task, and overall "R@1", "FR", "HM"; % and points.
    """
    rows: dict[str, dict[str, float]] = {}
    for file in FILES:
        with (Path(__file__).parent / "data" / file).open(newline="", encoding="utf-8") as lines:
            for line in csv.DictReader(lines):
                if line["table"] == table:
                    rows[line["method"]] = {_column(n, score): float(v) for n, v in line.items() if _is_number(n, v)}
    return rows


def _is_number(name: str, value: str) -> bool:
    return name not in ("table", "method", "memory") and bool(value)


def _column(name: str, score: str) -> str:
    """`task2_fr` -> "2:FR", `overall_hm` -> "HM", `overall` -> the score; other columns are named by their metric."""
    if not name.startswith(("task", "overall")):
        return name
    place, _, kind = name.partition("_")
    metric = kind.upper() or score
    return metric if place == "overall" else f"{place.removeprefix('task')}:{metric}"
