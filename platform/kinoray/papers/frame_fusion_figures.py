"""The figures of FrameFusionMoE (Zhao et al., SIGIR 2025)."""

from dataclasses import replace

from kinoray.papers.claims import Claim, above, higher, lower, peak_inside
from kinoray.papers.entries import DRIFT, LATE, LEAN, CurveEntry, Entry, MapEntry, TableEntry
from kinoray.papers.frame_fusion import (
    BEST,
    LWF,
    OURS,
    PAPER,
    PAPER_STREAM,
    RIVALS,
    STREAM,
    TABLE1,
    UPPER_BOUND,
    X_POOL,
    ZERO_SHOT,
)

FIG2 = TableEntry(
    title="Plasticity: R@1 on each task after each task, against CLIP as it came",
    place=f"{PAPER}, Figure 2",
    rows=(ZERO_SHOT, replace(X_POOL, best_of=X_POOL.label), BEST),
    overall=("R@1", LATE, "BWF_own"),
    picture="plasticity",
    stream=STREAM,
    paper_stream=PAPER_STREAM,
    best_from="ctvr-table1",
    published=(
        "X-Pool underperforms CLIP as it came on late tasks; FrameFusionMoE improves on it task by task and forgets "
        "little."
    ),
    source="Figure 2 and Sec. 5.1; of the figure itself only the text is at hand",
    claims=(
        lower(LATE, X_POOL, ZERO_SHOT, "On late tasks X-Pool is below CLIP as it came."),
        higher(LATE, OURS, ZERO_SHOT, "On late tasks FrameFusionMoE is above CLIP as it came."),
    ),
)

FIG3 = TableEntry(
    title="The first task's queries as later tasks are learned",
    place=f"{PAPER}, Figure 3",
    rows=(replace(LWF, best_of=LWF.label), BEST),
    overall=("R@1", DRIFT, "BWF_own"),
    drawn=(),
    picture="queries",
    stream=STREAM,
    paper_stream=PAPER_STREAM,
    best_from="ctvr-table1",
    published="With LwF the queries of task 1 shift as the model goes on learning; with FrameFusionMoE they stay.",
    source="Figure 3 and Sec. 5.1; of the figure itself only the text is at hand, so the shift is put as a number",
    claims=(lower(DRIFT, OURS, LWF, "FrameFusionMoE's queries of task 1 move less than LwF's."),),
)

CROSSED, OWN = "FFA temporal CA", "CLIP spatial SA"

FIG5 = MapEntry(
    title="Where the Frame Fusion Adapters and CLIP's own attention look",
    place=f"{PAPER}, Figure 5",
    rows=(BEST,),
    stream=STREAM,
    paper_stream=PAPER_STREAM,
    best_from="ctvr-table1",
    published=(
        "The adapters' temporal attention looks at what stays from frame to frame (track, background), CLIP's spatial "
        "attention at what moves (the athlete)."
    ),
    source="Figure 5 and Sec. 3.3; one clip of ActivityNet",
    claims=(
        above(LEAN, CROSSED, "Temporal attention looks at what stays."),
        higher(LEAN, CROSSED, OWN, "It does so more than CLIP's spatial attention."),
    ),
)

FIG7 = replace(
    FIG5,
    title="Temporal attention over a fixed shot, a cut and a pan",
    place=f"{PAPER}, Figure 7",
    shots=("fixed", "transition", "pan"),
    published=(
        "In a fixed shot temporal attention is balanced, in a transition it looks for what both sides share, in a pan "
        "at what overlaps from frame to frame."
    ),
    source="Figure 7 and Sec. 5.2; one clip each. Here every clip is made into all three kinds",
    claims=tuple(
        above(LEAN, f"{shot}: {CROSSED}", f"In a {shot} it looks at what stays.") for shot in ("transition", "pan")
    ),
)

FIG6 = replace(
    TABLE1,
    title="Final R@1 over all tasks so far, after each task",
    place=f"{PAPER}, Figure 6",
    rows=tuple(
        replace(row, best_of=row.label) for row in TABLE1.rows if row.label not in (UPPER_BOUND.label, ZERO_SHOT.label)
    ),
    overall=("R@1",),
    drawn=(),
    picture="so_far",
    table="",
    tables={},
    tuned=False,
    best_from="ctvr-table1",
    published="FrameFusionMoE is above all baselines after every number of tasks; its lead grows with the tasks.",
    source="Figure 6 and Sec. 5.1; of the figure itself only the text is at hand",
    claims=(higher("R@1", OURS, RIVALS, "At the end FrameFusionMoE is above all others."),),
)


def _curve(knob: str, space: str, title: str, published: str, claims: tuple[Claim, ...]) -> CurveEntry:
    return CurveEntry(
        title=f"FrameFusionMoE over {title}",
        place=f"{PAPER}, Figure 8",
        sweeps={"frame_fusion_moe": space},
        over=knob,
        panels={"R@1": "Final R@1", "BWF_own": "BWF"},
        stream=STREAM,
        paper_stream=PAPER_STREAM,
        best_from="ctvr-table1",
        best_of=OURS.label,
        published=published,
        source="Figure 8 and Sec. 5.3; of the figure itself only the text is at hand",
        claims=claims,
    )


FIG8 = {
    "layers": _curve(
        "fusion_layers",
        "layers",
        "the number of blocks with a Frame Fusion Adapter",
        "Best with 10 to 12 of 12 blocks.",
        (higher("R@1", 10, 4, "Ten blocks are better than four."),),
    ),
    "experts": _curve(
        "experts",
        "experts",
        "the number of experts",
        "Not linear in the number of experts: 5 and 10 are best of 1 to 20.",
        (peak_inside("R@1", "Neither one expert nor twenty are best."),),
    ),
    "loss": _curve(
        "beta",
        "loss_scale",
        "the scale of the cross-task loss",
        "A marginal influence; 0.6 is best of 0 to 1.",
        (peak_inside("R@1", "Neither no cross-task loss nor it alone is best."),),
    ),
    "frames": _curve(
        "frames",
        "frames",
        "the number of frames of a training video",
        "On MSR-VTT too few frames (6) lose time, too many bring noise.",
        (peak_inside("R@1", "Neither the fewest frames nor the most are best."),),
    ),
}

ENTRIES: dict[str, Entry] = {
    "ctvr-fig2": FIG2,
    "ctvr-fig3": FIG3,
    "ctvr-fig5": FIG5,
    "ctvr-fig6": FIG6,
    "ctvr-fig7": FIG7,
    **{f"ctvr-fig8-{name}": entry for name, entry in FIG8.items()},
}
