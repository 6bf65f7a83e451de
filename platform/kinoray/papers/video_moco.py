"""The tables and figures of VideoMoCo (Pan et al., CVPR 2021).

Every row is a pretext run; its score is what `classify` reaches by fine-tuning its encoder on the downstream sets.
"""

from dataclasses import replace
from typing import Any

from kinoray.papers.claims import higher, lower
from kinoray.papers.entries import (
    ENTROPY,
    ENTROPY_OCCLUDED,
    ENTROPY_RISE,
    FINE_TUNED,
    FINE_TUNED_2,
    FINE_TUNED_OCCLUDED,
    GFLOP,
    LEAN,
    Entry,
    MapEntry,
    MethodRow,
    TableEntry,
    at_lower_rates,
)

PAPER = "Pan et al., VideoMoCo, CVPR 2021"
STREAM, PAPER_STREAM = "moving-actions:9", "video-ssl"
GROUND: dict[str, Any] = {"stream": STREAM, "paper_stream": PAPER_STREAM}
ACCURACY: dict[str, Any] = GROUND | {"then": "classify", "overall": (FINE_TUNED, FINE_TUNED_2), "drawn": (FINE_TUNED,)}
"""Of tables of what fine-tuning reaches."""
SPLITS: dict[str, Any] = {"stream": "robots-ssl", "worlds": ("1", "2", "3"), "seeds": 1, "beside": (GFLOP,)}
"""Of the main tables: splits that chose nothing."""
QUEUE, PAPER_QUEUE = 512, 65_536
"""Keys of the embedded stream's queue (`RECIPES` of video_moco), and of the paper's."""


def row(label: str, **settings: str | float) -> MethodRow:
    """A line of a table, which says what differs from VideoMoCo."""
    return MethodRow(label=label, method="video_moco", settings=settings)


def small(t: float) -> float:
    """The decay that gives the oldest key of the small queue the weight t^K of the paper's oldest."""
    return t ** (PAPER_QUEUE / QUEUE)


BASELINE = row("baseline", dropout="none", t=1.0)
SLOWER = at_lower_rates(BASELINE)
BLIND = replace(BASELINE, label="baseline, frames shuffled", control="order-blind")
SCRATCH = replace(BASELINE, label="from scratch", control="random-encoder")
"""The encoder takes no step; fine-tuning begins with fresh weights."""
RANDOM = row("random", dropout="random", t=1.0)
DROPPED = {k: row(f"k = {k}", dropout_share=k / 32, t=1.0) for k in (8, 16, 24)}
"""One, two and three of four frames. The paper's 4 and 12 of 32 lie between."""
NOT_EIGHT = tuple(other for k, other in DROPPED.items() if k != 8)
WHOLE = row("k = 8, decay")

TABLE1 = TableEntry(
    title="Which frames the query loses: none, random ones, or k of 32 by the generator; and the decay of keys",
    place=f"{PAPER}, Table 1",
    rows=(SCRATCH, BLIND, BASELINE, *SLOWER, RANDOM, *DROPPED.values(), WHOLE),
    published_only=("k = 4", "k = 12"),
    table="video-moco-table1",
    **(ACCURACY | SPLITS),
    published=(
        "Random dropout degrades the baseline, 75.9 to 74.1 % on UCF101; adversarial learning improves it, to 77.8, "
        "and k = 8 of 32 frames is best; the decay improves it further, to 78.7."
    ),
    source="Table 1 and Sec. 4.3.1, R(2+1)D; k is run as a share of a clip's frames, so that k = 4 and 12 are not run",
    claims=(
        lower(FINE_TUNED, RANDOM, BASELINE, "Random dropout degrades the baseline."),
        higher(FINE_TUNED, DROPPED[8], (BASELINE, *SLOWER), "Adversarial learning improves the baseline."),
        higher(FINE_TUNED, DROPPED[8], NOT_EIGHT, "Of the numbers of frames k = 8 is best."),
        higher(FINE_TUNED, WHOLE, DROPPED[8], "The decay improves it further."),
    ),
)

DECAYS = {
    words: MethodRow(
        label=f"t = {words}",
        method="video_moco",
        settings={"t": small(float(words))},
        paper_settings={"t": float(words)},
    )
    for words in ("1", "0.999", "0.9999", "0.99999", "0.999999", "0.9999999")
}
BEST = DECAYS["0.99999"]
ALONE = row("t = 0.99999, no adversarial learning", dropout="none")

TABLE2 = TableEntry(
    title="How fast keys decay: t, with and without adversarial learning",
    place=f"{PAPER}, Table 2",
    rows=(*DECAYS.values(), ALONE),
    table="video-moco-table2",
    **ACCURACY,
    published=(
        "t = 0.99999 is best, 78.7 % on UCF101; there the oldest of 65,536 keys counts half. Where t is not relatively "
        "large, 0.999 and 0.9999, few keys contribute and it is worse than without decay, 77.8."
    ),
    source=(
        "Table 2 and Sec. 4.3.2; on a small queue of K keys t is scaled so that the oldest keeps its weight t^65536, "
        "by which rows are labelled"
    ),
    claims=(
        higher(FINE_TUNED, BEST, tuple(other for other in DECAYS.values() if other != BEST), "t = 0.99999 is best."),
        *(
            lower(FINE_TUNED, DECAYS[words], DECAYS["1"], f"t = {words} is too small: worse than no decay.")
            for words in ("0.999", "0.9999")
        ),
        higher(FINE_TUNED, BEST, ALONE, "Adversarial learning improves the decay, too."),
    ),
)

OTHERS = (
    "Shuffle&Learn, AlexNet",
    "Deep RL, CaffeNet",
    "OPN, VGG-M-2048",
    "O3N, AlexNet",
    "Spatio-Temp, C3D",
    "Spatio-Temp, C3D, K-400",
    "VCOP, C3D",
    "RTT, C3D",
    "DPC, 3D-ResNet34, K-400",
    "RotNet3D, 3D-ResNet18, K-400",
    "ST-puzzle, 3D-ResNet18, K-400",
    "DPC, 3D-ResNet18, K-400",
    "VCP, R(2+1)D",
    "VCOP, R(2+1)D",
    "PRP, R(2+1)D",
    "RTT, R(2+1)D",
    "Pace Prediction, R(2+1)D, K-400",
)
"""Methods of other papers, with their network and, where it is not the downstream set, their pretext data."""
NETWORKS = {
    name: MethodRow(label=f"VideoMoCo, {name}", method="video_moco", backbone=small, paper_backbone=own)
    for name, small, own in (("3D-ResNet18", "tiny-3d", "r3d-18:4"), ("R(2+1)D", "tiny-2plus1d", "r2plus1d-18:4"))
}
UNTRAINED = tuple(replace(of, label=f"from scratch, {name}", control="random-encoder") for name, of in NETWORKS.items())

TABLE3 = TableEntry(
    title="VideoMoCo with two networks, among other methods as published",
    place=f"{PAPER}, Table 3",
    rows=(*NETWORKS.values(), *UNTRAINED),
    published_only=OTHERS,
    table="video-moco-table3",
    **(ACCURACY | SPLITS),
    published=(
        "VideoMoCo performs favourably against the other methods with either network; R(2+1)D is ahead of 3D-ResNet18, "
        "78.7 against 74.1 % on UCF101."
    ),
    source=(
        "Table 3 and Sec. 4.4; the other methods are not here, so what is said against them is not measured. On small "
        "streams both networks are small ones of equal numbers of weights, tiny-3d and tiny-2plus1d"
    ),
    claims=(higher(FINE_TUNED, NETWORKS["R(2+1)D"], NETWORKS["3D-ResNet18"], "R(2+1)D is ahead of 3D-ResNet18."),),
)

MOCO, OURS = row("MoCo", dropout="none", t=1.0), row("VideoMoCo")

FIG4 = TableEntry(
    title="How sure the fine-tuned networks are of complete and of partially occluded clips",
    place=f"{PAPER}, Figure 4",
    rows=(MOCO, OURS),
    overall=(ENTROPY, ENTROPY_OCCLUDED, ENTROPY_RISE, FINE_TUNED, FINE_TUNED_OCCLUDED),
    drawn=(ENTROPY, ENTROPY_OCCLUDED),
    then="classify",
    **GROUND,
    published=(
        "Of two clips of UCF101 VideoMoCo's predictions have the lower entropy, and where several frames are partially "
        "occluded it rises less than MoCo's."
    ),
    source="Figure 4 and Sec. 3.4; two clips there, here all test clips of the first downstream set",
    claims=(
        lower(ENTROPY, OURS, MOCO, "VideoMoCo is surer of complete clips."),
        lower(ENTROPY_RISE, OURS, MOCO, "Occlusion unsettles VideoMoCo less."),
        higher(FINE_TUNED_OCCLUDED, OURS, MOCO, "Of occluded clips VideoMoCo knows more."),
    ),
)

FIG5 = MapEntry(
    title="Where the networks' last maps are strong, learned by MoCo and by VideoMoCo",
    place=f"{PAPER}, Figure 5",
    rows=(MOCO, OURS),
    clips=20,
    **GROUND,
    published="VideoMoCo attends to where things move (a pencil's tip, a hand), MoCo less so.",
    source=(
        "Figure 5 and Sec. 3.4; two clips. How attention is computed is not said; here it is the sum of squared "
        "activations of the last maps"
    ),
    claims=(
        lower(
            LEAN,
            f"{OURS.label}: activation",
            f"{MOCO.label}: activation",
            "VideoMoCo looks more at what moves than MoCo.",
        ),
    ),
)

ENTRIES: dict[str, Entry] = {
    "videomoco-table1": TABLE1,
    "videomoco-table2": TABLE2,
    "videomoco-table3": TABLE3,
    "videomoco-fig4": FIG4,
    "videomoco-fig5": FIG5,
}
