"""The tables and figures of FrameFusionMoE (Zhao et al., SIGIR 2025)."""

from dataclasses import replace

from kinoray.papers.claims import Above, Claim, Higher, Lower, PeakInside
from kinoray.papers.entries import DRIFT, LATE, LEAN, TRAINABLE, CurveEntry, Entry, MapEntry, MethodRow, TableEntry

PAPER = "Zhao et al., FrameFusionMoE, SIGIR 2025"
STREAM, PAPER_STREAM = "moving-ctvr-10:9", "ctvr-msrvtt-10"
SETTINGS = {
    "moving-ctvr-10": "msrvtt-10",
    "moving-ctvr-20": "msrvtt-20",
    "moving-ctvr-long-10": "actnet-10",
    "moving-ctvr-long-20": "actnet-20",
    "ctvr-msrvtt-10": "msrvtt-10",
    "ctvr-msrvtt-20": "msrvtt-20",
    "ctvr-actnet-10": "actnet-10",
    "ctvr-actnet-20": "actnet-20",
}
"""The paper's setting whose numbers stand beside a stream's."""
BUDGET = {"learning_rate": {"choices": [3e-5, 1e-4, 3e-4, 1e-3]}}
"""Four trials for every row: adapters beside a frozen CLIP want another rate than CLIP itself."""

ZERO_SHOT = MethodRow(label="Zero-shot CLIP", method="avg_pool", zero_shot=True)
CLIP4CLIP = MethodRow(label="CLIP4Clip", method="avg_pool")
X_POOL = MethodRow(label="X-Pool", method="x_pool")
CLIP_VIP = MethodRow(label="CLIP-ViP", method="clip_vip")
LWF = MethodRow(label="LwF", method="lwf:avg_pool")
VR_LWF = MethodRow(label="VR-LwF", method="vr_lwf:avg_pool")
ZSCL = MethodRow(label="ZSCL", method="zscl:avg_pool")
MOE_ADAPTER = MethodRow(label="MoE-Adapter", method="moe_adapter")
TVR_CL = MethodRow(label="TVR + CL", method="vr_lwf:clip_vip")
OURS = MethodRow(label="FrameFusionMoE", method="frame_fusion_moe")
UPPER_BOUND = MethodRow(label="Upper Bound", method="avg_pool", joint=True)

FINE_TUNED = tuple(row.label for row in (CLIP4CLIP, X_POOL, CLIP_VIP, LWF, VR_LWF, ZSCL, TVR_CL))
"""Rows that train all of CLIP."""
RIVALS = (*FINE_TUNED, MOE_ADAPTER.label)
COLUMNS = ("R@1", "R@5", "R@10", "MedR", "MeanR", "BWF_own", "BWF", TRAINABLE)

TABLE1 = TableEntry(
    title="FrameFusionMoE and its rivals: R@K, ranks, backward forgetting and trained parameters",
    place=f"{PAPER}, Table 1",
    rows=(
        ZERO_SHOT,
        CLIP4CLIP,
        X_POOL,
        CLIP_VIP,
        LWF,
        VR_LWF,
        ZSCL,
        MOE_ADAPTER,
        TVR_CL,
        OURS,
        UPPER_BOUND,
    ),
    overall=COLUMNS,
    drawn=("R@1", "R@10", "BWF_own"),
    table="ctvr-table1-msrvtt-10",
    tables={stream: f"ctvr-table1-{setting}" for stream, setting in SETTINGS.items()},
    stream=STREAM,
    paper_stream=PAPER_STREAM,
    tuned=True,
    budget=BUDGET,
    published=(
        "FrameFusionMoE has the best R@1 in all four settings (with 10 tasks of MSR-VTT +1.38 over the second best) "
        "and forgets next to nothing; CLIP4Clip is better than the more advanced X-Pool and CLIP-ViP, which fall below "
        "CLIP as it came; distillation gains less than in image recognition."
    ),
    source="Table 1 and Sec. 5.1; BWF there is the reading within each task's own gallery",
    claims=(
        Higher(words="FrameFusionMoE has the best R@1.", metric="R@1", at=OURS.label, than=RIVALS),
        Lower(words="FrameFusionMoE forgets least: BWF.", metric="BWF_own", at=OURS.label, than=RIVALS),
        Higher(
            words="CLIP4Clip beats the more advanced X-Pool and CLIP-ViP.",
            metric="R@1",
            at=CLIP4CLIP.label,
            than=(X_POOL.label, CLIP_VIP.label),
        ),
        *(
            Lower(
                words=f"{row.label} ends below CLIP as it came.",
                metric="R@1",
                at=row.label,
                than=(ZERO_SHOT.label,),
            )
            for row in (X_POOL, CLIP_VIP)
        ),
        Higher(
            words="FrameFusionMoE is better than CLIP as it came.",
            metric="R@1",
            at=OURS.label,
            than=(ZERO_SHOT.label,),
        ),
        Lower(
            words="FrameFusionMoE trains fewer parameters than any method that trains CLIP.",
            metric=TRAINABLE,
            at=OURS.label,
            than=FINE_TUNED,
        ),
        Lower(
            words="FrameFusionMoE trains fewer parameters than MoE-Adapter.",
            metric=TRAINABLE,
            at=OURS.label,
            than=(MOE_ADAPTER.label,),
        ),
    ),
)

BEST = replace(OURS, best_of=OURS.label)
PARTS = {
    "FFA": replace(BEST, label="w/o FFA", settings={"fusion_layers": 0}),
    "TAME": replace(BEST, label="w/o TAME", settings={"experts": 0}),
    "TP": replace(BEST, label="w/o TP", settings={"prototypes": False}),
    "L_CT": replace(BEST, label="w/o L_CT", settings={"beta": 0.0}),
}
BASELINE = replace(CLIP4CLIP, label="baseline (CLIP4Clip)", best_of=CLIP4CLIP.label)

TABLE2 = TableEntry(
    title="FrameFusionMoE without each of its parts",
    place=f"{PAPER}, Table 2",
    rows=(BEST, *PARTS.values(), BASELINE),
    overall=("R@1", "BWF_own", "BWF", TRAINABLE),
    drawn=("R@1", "BWF_own"),
    table="ctvr-table2-msrvtt-10",
    tables={stream: f"ctvr-table2-{setting}" for stream, setting in SETTINGS.items()},
    stream=STREAM,
    paper_stream=PAPER_STREAM,
    best_from="ctvr-table1",
    published=(
        "Every part contributes: without FFA R@1 falls by 8.66 points, without TAME by 1.03, without the task "
        "prototypes by 0.33, without the cross-task loss by 1.10; without TAME forgetting grows."
    ),
    source="Table 2 and Sec. 5.2, 10 tasks of MSR-VTT; settings here are the best ones of ctvr-table1",
    claims=(
        *(
            Higher(words=f"{part} contributes to R@1.", metric="R@1", at=OURS.label, than=(row.label,))
            for part, row in PARTS.items()
        ),
        Lower(
            words="To remove FFA costs most.",
            metric="R@1",
            at=PARTS["FFA"].label,
            than=tuple(row.label for part, row in PARTS.items() if part != "FFA"),
        ),
        Higher(
            words="Without TAME there is more forgetting.",
            metric="BWF_own",
            at=PARTS["TAME"].label,
            than=(OURS.label,),
        ),
        Higher(words="The whole is better than CLIP4Clip.", metric="R@1", at=OURS.label, than=(BASELINE.label,)),
    ),
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
    row=BEST,
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
    "ctvr-table1": TABLE1,
    "ctvr-table2": TABLE2,
    "ctvr-fig2": FIG2,
    "ctvr-fig3": FIG3,
    "ctvr-fig5": FIG5,
    "ctvr-fig6": FIG6,
    "ctvr-fig7": FIG7,
    **{f"ctvr-fig8-{name}": entry for name, entry in FIG8.items()},
}
