"""The tables and figures of FrameFusionMoE (Zhao et al., SIGIR 2025)."""

from dataclasses import replace
from typing import Any

from kinoray.papers.claims import Claim, above, higher, lower, peak_inside
from kinoray.papers.entries import (
    DRIFT,
    GFLOP,
    LATE,
    LEAN,
    TRAINABLE,
    CurveEntry,
    Entry,
    MapEntry,
    MethodRow,
    TableEntry,
    at_lower_rates,
)

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
SLOWER = at_lower_rates(CLIP4CLIP)
X_POOL = MethodRow(label="X-Pool", method="x_pool")
CLIP_VIP = MethodRow(label="CLIP-ViP", method="clip_vip")
LWF = MethodRow(label="LwF", method="lwf:avg_pool")
VR_LWF = MethodRow(label="VR-LwF", method="vr_lwf:avg_pool")
ZSCL = MethodRow(label="ZSCL", method="zscl:avg_pool")
MOE_ADAPTER = MethodRow(label="MoE-Adapter", method="moe_adapter")
TVR_CL = MethodRow(label="TVR + CL", method="vr_lwf:clip_vip")
OURS = MethodRow(label="FrameFusionMoE", method="frame_fusion_moe")
UPPER_BOUND = MethodRow(label="Upper Bound", method="avg_pool", joint=True)
IN_TIME = MethodRow(label="CLIP-ViP, joint", method="clip_vip", joint=True, settings={"new_rate": 30.0, "temporal": 4})
"""A bound that sees the order of frames."""

ONE_WORLD: dict[str, Any] = {"worlds": (), "seeds": 3, "beside": ()}
GROUND: dict[str, Any] = ONE_WORLD | {"stream": STREAM, "paper_stream": PAPER_STREAM}
"""Where most of them are measured."""
WORLDS: dict[str, Any] = {"stream": "moving-ctvr-10", "worlds": ("1", "2", "3"), "seeds": 1, "beside": (GFLOP,)}
"""Of the main tables: worlds that chose nothing."""

FINE_TUNED = (CLIP4CLIP, X_POOL, CLIP_VIP, LWF, VR_LWF, ZSCL, TVR_CL)
"""Rows that train all of CLIP."""
RIVALS = (*FINE_TUNED, MOE_ADAPTER)
WHAT, ORDER = "R@1_what", "R@1_order"
"""Whether a clip or its twin is found, and whether the clip before its twin: at random 50 %."""
COLUMNS = ("R@1", WHAT, ORDER, "R@5", "R@10", "MedR", "MeanR", "BWF_own", "BWF", TRAINABLE)

TABLE1 = TableEntry(
    title="FrameFusionMoE and its rivals: R@K, ranks, backward forgetting and trained parameters",
    place=f"{PAPER}, Table 1",
    rows=(
        ZERO_SHOT,
        CLIP4CLIP,
        *SLOWER,
        X_POOL,
        CLIP_VIP,
        LWF,
        VR_LWF,
        ZSCL,
        MOE_ADAPTER,
        TVR_CL,
        OURS,
        UPPER_BOUND,
        IN_TIME,
    ),
    overall=COLUMNS,
    drawn=("R@1", "R@10", "BWF_own"),
    table="ctvr-table1-msrvtt-10",
    tables={stream: f"ctvr-table1-{setting}" for stream, setting in SETTINGS.items()},
    **(GROUND | WORLDS),
    tuned=True,
    budget=BUDGET,
    published=(
        "FrameFusionMoE has the best R@1 in all four settings (with 10 tasks of MSR-VTT +1.38 over the second best) "
        "and forgets next to nothing; CLIP4Clip is better than the more advanced X-Pool and CLIP-ViP, which fall below "
        "CLIP as it came; distillation gains less than in image recognition."
    ),
    source="Table 1 and Sec. 5.1; BWF there is the reading within each task's own gallery",
    claims=(
        higher("R@1", OURS, (*RIVALS, *SLOWER), "FrameFusionMoE has the best R@1."),
        lower("BWF_own", OURS, (*RIVALS, *SLOWER), "FrameFusionMoE forgets least: BWF."),
        higher("R@1", CLIP4CLIP, (X_POOL, CLIP_VIP), "CLIP4Clip beats the more advanced X-Pool and CLIP-ViP."),
        *(lower("R@1", row, ZERO_SHOT, f"{row.label} ends below CLIP as it came.") for row in (X_POOL, CLIP_VIP)),
        higher("R@1", OURS, ZERO_SHOT, "FrameFusionMoE is better than CLIP as it came."),
        lower(TRAINABLE, OURS, FINE_TUNED, "FrameFusionMoE trains fewer parameters than any method that trains CLIP."),
        lower(TRAINABLE, OURS, MOE_ADAPTER, "FrameFusionMoE trains fewer parameters than MoE-Adapter."),
    ),
)

TABLE1_20 = replace(
    TABLE1,
    title="FrameFusionMoE and three rivals over twenty tasks",
    place=f"{PAPER}, Table 1, 20 tasks",
    rows=(ZERO_SHOT, X_POOL, CLIP_VIP, LWF, OURS, UPPER_BOUND),
    table="ctvr-table1-msrvtt-20",
    overall=tuple(column for column in COLUMNS if column not in (WHAT, ORDER)),  # twins are in two tasks there
    **ONE_WORLD,
    stream="moving-ctvr-20:9",
    paper_stream="ctvr-msrvtt-20",
    tuned=False,
    source="Table 1 and Sec. 5.1, 20 tasks",
    published="With 20 tasks of MSR-VTT FrameFusionMoE has the best R@1 again, and forgets next to nothing.",
    claims=(
        higher("R@1", OURS, (X_POOL, CLIP_VIP, LWF), "FrameFusionMoE has the best R@1 over twenty tasks, too."),
        lower("BWF_own", OURS, (X_POOL, CLIP_VIP, LWF), "FrameFusionMoE forgets least: BWF."),
        higher("R@1", OURS, ZERO_SHOT, "FrameFusionMoE is better than CLIP as it came."),
    ),
)
PARTS = {
    "FFA": replace(OURS, label="w/o FFA", settings={"fusion_layers": 0}),
    "TAME": replace(OURS, label="w/o TAME", settings={"experts": 0}),
    "TP": replace(OURS, label="w/o TP", settings={"prototypes": False}),
    "L_CT": replace(OURS, label="w/o L_CT", settings={"beta": 0.0}),
}
SAME_RATE = replace(OURS, label="gates at the shared rate", settings={"other_rate": 1.0})
"""They open about as far as the paper's own rate and number of steps let them."""
BASELINE = replace(CLIP4CLIP, label="baseline (CLIP4Clip)")

TABLE2 = TableEntry(
    title="FrameFusionMoE without each of its parts",
    place=f"{PAPER}, Table 2",
    rows=(ZERO_SHOT, OURS, SAME_RATE, *PARTS.values(), BASELINE, *SLOWER, IN_TIME),
    overall=("R@1", WHAT, ORDER, "BWF_own", "BWF", TRAINABLE),
    drawn=("R@1", ORDER, "BWF_own"),
    table="ctvr-table2-msrvtt-10",
    tables={stream: f"ctvr-table2-{setting}" for stream, setting in SETTINGS.items()},
    **(GROUND | WORLDS),
    published=(
        "Every part contributes: without FFA R@1 falls by 8.66 points, without TAME by 1.03, without the task "
        "prototypes by 0.33, without the cross-task loss by 1.10; without TAME forgetting grows."
    ),
    source="Table 2 and Sec. 5.2, 10 tasks of MSR-VTT; that FFA tells a clip from its twin is ours, after Sec. 3.3",
    claims=(
        *(higher("R@1", OURS, row, f"{part} contributes to R@1.") for part, row in PARTS.items()),
        higher(ORDER, OURS, PARTS["FFA"], "FFA contributes to the order of events."),
        lower("R@1", PARTS["FFA"], (PARTS["TAME"], PARTS["TP"], PARTS["L_CT"]), "To remove FFA costs most."),
        higher("BWF_own", PARTS["TAME"], OURS, "Without TAME there is more forgetting."),
        higher("R@1", OURS, (BASELINE, *SLOWER), "The whole is better than CLIP4Clip."),
    ),
)

FIG2 = TableEntry(
    title="Plasticity: R@1 on each task after each task, against CLIP as it came",
    place=f"{PAPER}, Figure 2",
    rows=(ZERO_SHOT, X_POOL, OURS),
    overall=("R@1", LATE, "BWF_own"),
    picture="plasticity",
    **GROUND,
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
    rows=(LWF, OURS),
    overall=("R@1", DRIFT, "BWF_own"),
    drawn=(),
    picture="queries",
    **GROUND,
    published="With LwF the queries of task 1 shift as the model goes on learning; with FrameFusionMoE they stay.",
    source="Figure 3 and Sec. 5.1; of the figure itself only the text is at hand, so the shift is put as a number",
    claims=(lower(DRIFT, OURS, LWF, "FrameFusionMoE's queries of task 1 move less than LwF's."),),
)

CROSSED, OWN = "FFA temporal CA", "CLIP spatial SA"

FIG5 = MapEntry(
    title="Where the Frame Fusion Adapters and CLIP's own attention look",
    place=f"{PAPER}, Figure 5",
    rows=(OURS,),
    **GROUND,
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
    rows=tuple(row for row in TABLE1.rows if not row.is_bound),
    **GROUND,
    overall=("R@1",),
    drawn=(),
    picture="so_far",
    table="",
    tables={},
    tuned=False,
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
        **GROUND,
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
    "frames": replace(
        _curve(
            "frames",
            "frames",
            "the number of frames of a training video",
            "On MSR-VTT too few frames (6) lose time, too many bring noise.",
            (peak_inside("R@1", "Neither the fewest frames nor the most are best."),),
        ),
        stream="moving-ctvr-long-10:9",  # the others have four frames
    ),
}

ENTRIES: dict[str, Entry] = {
    "ctvr-table1": TABLE1,
    "ctvr-table1-20": TABLE1_20,
    "ctvr-table2": TABLE2,
    "ctvr-fig2": FIG2,
    "ctvr-fig3": FIG3,
    "ctvr-fig5": FIG5,
    "ctvr-fig6": FIG6,
    "ctvr-fig7": FIG7,
    **{f"ctvr-fig8-{name}": entry for name, entry in FIG8.items()},
}
