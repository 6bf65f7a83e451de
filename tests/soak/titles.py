"""What the processes of a run are, by the titles that Ray and loky give them."""

import re

import psutil

TITLES = {
    "worker": re.compile(r"ray::RayTrainWorker"),
    "decoder": re.compile(r"ray::(MapBatches|_decode_alone)|.* -m loky\.backend\.popen_loky_posix"),
    "actor": re.compile(r"ray::(RunMonitor|MomentumStore|FeatureActor)"),
}
"""Ray Train's workers; who decodes, be it a task of Ray Data or a process of the run's own; the run's actors."""


def kind_of(process: psutil.Process) -> str:
    """One of TITLES, else ""."""
    try:
        title = " ".join(process.cmdline()).strip()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ""
    return next((kind for kind, form in TITLES.items() if form.match(title)), "")
