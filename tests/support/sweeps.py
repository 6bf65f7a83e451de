"""Trials and sweeps in this process, for tests."""

from pathlib import Path
from typing import Any

from kinoray.runs.method_source import find_method
from kinoray.runs.request import RunRequest
from kinoray.sweeps.space import distributions
from kinoray.sweeps.study import known_objectives, open_study
from kinoray.sweeps.study_search import PruneRule, StudySearch
from kinoray.sweeps.trial import Job, TrialRun

FIXED = {"queue_size": 16}


def job_of(micro, folder: Path, method: Any = "bmu_moco", seeds: tuple[int, ...] = (0,), **options: Any) -> Job:
    asked = {name: options.pop(name) for name in ("stream", "settings", "smoke") if name in options}
    run = RunRequest(find_method(method), **({"stream": micro, "settings": FIXED, "runs": str(folder)} | asked))
    usual: dict[str, Any] = {"objectives": ("HM",), "threads": 1}
    return Job(folder=str(folder / "s"), run=run, seeds=seeds, **(usual | options))


def whole_trial(job: Job, params: dict[str, Any], number: int = 0) -> list[dict[str, Any]]:
    """All reports of a trial."""
    Path(job.folder).mkdir(parents=True, exist_ok=True)
    trial = TrialRun(job, number, params)
    reports = [trial.advance()]
    while not reports[-1].get("done"):
        reports.append(trial.advance())
    trial.close()
    return reports


SPACE = {"m_hat": {"low": 0.0, "high": 1.0}}


class Fake:
    """A sweep whose trials are numbers."""

    def __init__(self, folder: Path, space: dict[str, Any], sampler: str = "random", **options: Any) -> None:
        record = {"name": "fake", "protocol": "cvlm", "objectives": ["HM"], "storage": None} | options
        folder.mkdir(exist_ok=True)
        self.study, self.store = open_study(folder, record, create=True)
        self.events: list[tuple[Any, ...]] = []
        self.search = StudySearch(
            self.study, self.store, distributions(space), record["objectives"], known_objectives(record),
            sampler=sampler, seed=0, num_tasks=3,
            tell=lambda event, number, **facts: self.events.append((event, number)),
        )  # fmt: skip
        self.rule = PruneRule(self.search, 0.5)
        self.begun = 0

    def trial(self, score) -> tuple[int, list[int]]:
        """One trial through Tune's calls; its number and the tasks that it did."""
        name = f"t{self.begun}"
        self.begun += 1
        config = self.search.suggest(name)
        tasks = []
        for task in (1, 2, 3):
            result = {"task": task, "HM": score(config["params"], task), "done": task == 3, "folders": [], "made": []}
            tasks.append(task)
            handle = type("T", (), {"trial_id": name})
            if result["done"] or self.rule.on_trial_result(None, handle, result) == "STOP":
                self.search.on_trial_complete(name, result)
                break
            self.search.on_trial_result(name, result)
        return config["number"], tasks
