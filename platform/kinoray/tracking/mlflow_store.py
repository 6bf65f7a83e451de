"""MLflow's store, for `kinoray export mlflow` and `--log mlflow`: opened once, written in batches."""

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy.exc import SQLAlchemyError

from kinoray.errors import UsageError
from kinoray.tracking.exported import FILES

SETTINGS = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
"""Set where the user has not set them."""
MOST_PARAMS, MOST_METRICS = 100, 1000
"""MLflow takes so many in one call."""
PARAM_LENGTH = 6000
DATA_BASES = ("sqlite", "postgresql", "mysql", "mssql")

Number = tuple[str, float, int, int]
"""Name, value, milliseconds since 1970, step."""


@contextmanager
def open_store(uri: str) -> Iterator[Any]:
    """MLflow's client on the store at a URI. Raises: UsageError where MLflow is not installed or does not answer."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise UsageError("MLflow is not installed. Run: pip install 'kinoray[mlflow]'") from None
    for name in ("alembic", "mlflow"):  # they tell of every table that they make
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        _reach(uri)
        yield MlflowClient(tracking_uri=uri)
    except (MlflowException, SQLAlchemyError, ImportError) as error:
        raise UsageError(f"MLflow at {_without_password(uri)}: {' '.join(str(error).split())[:300]}") from None


def _reach(uri: str) -> None:
    """Connect to a data base once: MLflow itself would try one that is not there for a minute and a half."""
    if uri.partition(":")[0].partition("+")[0] in DATA_BASES:
        engine = sqlalchemy.create_engine(uri)
        engine.connect().close()
        engine.dispose()


def experiment_of(client: Any, uri: str, name: str) -> str:
    """MLflow's id of an experiment. Files of one kept in an SQLite file lie beside that file, not where we stand."""
    known = client.get_experiment_by_name(name)
    if known is not None:
        return known.experiment_id
    place = None
    if uri.startswith("sqlite:///"):
        database = Path(uri.removeprefix("sqlite:///")).absolute()
        place = (database.parent / f"{database.stem}-artifacts" / named(name).replace(":", "-")).as_uri()
    return client.create_experiment(name, artifact_location=place)


def log_settings(client: Any, run: str, settings: Mapping[str, Any]) -> None:
    """Parameters, as many at a time as MLflow takes."""
    from mlflow.entities import Param

    params = [Param(named(name), str(value)[:PARAM_LENGTH]) for name, value in settings.items()]
    for start in range(0, len(params), MOST_PARAMS):
        client.log_batch(run, params=params[start : start + MOST_PARAMS])


def log_numbers(client: Any, run: str, numbers: Sequence[Number]) -> None:
    """Metrics, as many at a time as MLflow takes."""
    from mlflow.entities import Metric

    values = [Metric(named(name), value, time_ms, step) for name, value, time_ms, step in numbers]
    for start in range(0, len(values), MOST_METRICS):
        client.log_batch(run, metrics=values[start : start + MOST_METRICS])


def log_files(client: Any, run: str, folder: Path) -> None:
    """The files of a run's folder that go along."""
    for name in FILES:
        if (folder / name).is_file():
            client.log_artifact(run, str(folder / name))


def named(name: str) -> str:
    """A name as MLflow allows it, without `@` and its like."""
    return re.sub(r"[^\w\-. :/]", "", name)


def _without_password(uri: str) -> str:
    return re.sub(r"//[^/@]*@", "//", uri)
