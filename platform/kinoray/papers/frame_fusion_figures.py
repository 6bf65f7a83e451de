"""The figures of FrameFusionMoE (Zhao et al., SIGIR 2025)."""

from dataclasses import replace

from kinoray.papers.claims import Above, Claim, Higher, Lower, PeakInside
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
        Lower(
            words="On late tasks X-Pool is below CLIP as it came.",
            metric=LATE,
            at=X_POOL.label,
            than=(ZERO_SHOT.label,),
        ),
        Higher(
            words="On late tasks FrameFusionMoE is above CLIP as it came.",
            metric=LATE,
            at=OURS.label,
            than=(ZERO_SHOT.label,),
        ),
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
    claims=(
        Lower(
            words="FrameFusionMoE's queries of task 1 move less than LwF's.",
            metric=DRIFT,
            at=OURS.label,
            than=(LWF.label,),
        ),
    ),
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
        Above(words="Temporal attention looks at what stays.", metric=LEAN, at=CROSSED),
        Higher(words="It does so more than CLIP's spatial attention.", metric=LEAN, at=CROSSED, than=(OWN,)),
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
        Above(words=f"In a {shot} it looks at what stays.", metric=LEAN, at=f"{shot}: {CROSSED}")
        for shot in ("transition", "pan")
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
    claims=(Higher(words="At the end FrameFusionMoE is above all others.", metric="R@1", at=OURS.label, than=RIVALS),),
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
        (Higher(words="Ten blocks are better than four.", metric="R@1", at=10, than=(4,)),),
    ),
    "experts": _curve(
        "experts",
        "experts",
        "the number of experts",
        "Not linear in the number of experts: 5 and 10 are best of 1 to 20.",
        (PeakInside(words="Neither one expert nor twenty are best.", metric="R@1"),),
    ),
    "loss": _curve(
        "beta",
        "loss_scale",
        "the scale of the cross-task loss",
        "A marginal influence; 0.6 is best of 0 to 1.",
        (PeakInside(words="Neither no cross-task loss nor it alone is best.", metric="R@1"),),
    ),
    "frames": _curve(
        "frames",
        "frames",
        "the number of frames of a training video",
        "On MSR-VTT too few frames (6) lose time, too many bring noise.",
        (PeakInside(words="Neither the fewest frames nor the most are best.", metric="R@1"),),
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
