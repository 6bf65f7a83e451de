"""What Ray Tune drives: a process that runs trials one by one, and is clean again between them.

Only the death of the process makes Tune try a trial again; its runs then go on from their last commits.
"""

import gc
import os
import sys
import warnings
from typing import Any

import ray
import torch
from ray import tune

from kinoray.seeds import seed_libraries
from kinoray.sweeps.seed_run import Job
from kinoray.sweeps.trial import TrialRun


class SweepTrial(tune.Trainable):
    """What Ray Tune drives: one trial after another in one process."""

    def setup(self, config: dict[str, Any], job: Job | None = None) -> None:
        """Called once per process."""
        assert job is not None
        self.job, self.clean = job, Clean()
        self.trial = TrialRun(job, config["number"], config["params"])

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """The next trial finds the process as the first one did."""
        self.trial.close()
        del self.trial
        self.clean.restore()
        self.trial = TrialRun(self.job, new_config["number"], new_config["params"])
        return True

    def step(self) -> dict[str, Any]:
        return self.trial.advance() | {"node": ray.get_runtime_context().get_node_id()}

    def cleanup(self) -> None:
        self.trial.close()


class Clean:
    """A process's global state, to come back to between trials: random numbers, threads, torch's switches, modules."""

    def __init__(self) -> None:
        self.environment, self.folder = dict(os.environ), os.getcwd()
        self.threads, self.dtype = torch.get_num_threads(), torch.get_default_dtype()
        self.matmul = torch.get_float32_matmul_precision()
        self.deterministic = torch.are_deterministic_algorithms_enabled()
        self.warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        self.cudnn = (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic)
        self.path, self.filters = list(sys.path), list(warnings.filters)

    def restore(self) -> None:
        """Undo what a trial may have left behind; its method's module is loaded anew by the next trial."""
        for name in [n for n in sys.modules if n.startswith(("kinoray.methods.", "kinoray_user_"))]:
            del sys.modules[name]
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)
        sys.path[:] = self.path
        warnings.filters[:] = self.filters  # type: ignore[index]
        torch.set_num_threads(self.threads)
        torch.set_default_dtype(self.dtype)
        torch.set_grad_enabled(True)
        torch.set_float32_matmul_precision(self.matmul)
        torch.use_deterministic_algorithms(self.deterministic, warn_only=self.warn_only)
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = self.cudnn
        seed_libraries(0)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
