"""Runs: parameters, metrics per step and artifacts of a stage, in MLflow.

    tracking = open_tracking(db.sqlalchemy_url("mlflow"), artifact_root)
    with tracking.run("night", "train 2026-01-31", params, tags) as run:
        run.log_metrics({"loss": 0.7}, step=1)

Names no global state: the active run and the tracking URI of the `mlflow` module are left alone. A run that an earlier
process left open under the same name is closed as killed, so a repeated night leaves no run that runs for ever.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import DBAPIError

from components.errors import StoreError, Unavailable
from store.db import probe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_METRICS = 1000
MAX_PARAMS = 100
FLUSH_AFTER_S = 5.0


class Run:
    """One open run; metrics are sent in batches."""

    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self.id = run_id
        self._client = client
        self._waiting: list[Metric] = []
        self._sent_at = time.monotonic()

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Note figures of a step; they are sent within seconds, or at the end of the run."""
        now_ms = int(time.time() * 1000)
        self._waiting += [Metric(key, float(value), now_ms, step) for key, value in metrics.items()]
        is_due = time.monotonic() - self._sent_at > FLUSH_AFTER_S
        if is_due or len(self._waiting) >= MAX_METRICS:
            self.flush()

    def flush(self) -> None:
        """Send the metrics that wait."""
        waiting, self._waiting = self._waiting, []
        self._sent_at = time.monotonic()
        with translated():
            for start in range(0, len(waiting), MAX_METRICS):
                self._client.log_batch(self.id, metrics=waiting[start : start + MAX_METRICS])

    def log_text(self, text: str, name: str) -> None:
        """Store a text as an artifact under this name, for example `report.md`."""
        with translated():
            self._client.log_text(self.id, text, name)

    def log_figure(self, figure: "Figure", name: str) -> None:
        """Store a plot as an artifact under this name, for example `reward.png`."""
        with translated():
            self._client.log_figure(self.id, figure, name)

    def log_artifact(self, path: Path) -> None:
        """Store a copy of a file or folder as an artifact."""
        with translated():
            if path.is_dir():
                self._client.log_artifacts(self.id, str(path), path.name)
            else:
                self._client.log_artifact(self.id, str(path))


class Tracking:
    """A connection to MLflow: runs here, models in `registry.py`."""

    def __init__(self, client: MlflowClient, artifact_root: Path) -> None:
        self.client = client
        self._artifact_root = artifact_root

    @contextmanager
    def run(
        self, experiment: str, name: str, params: Mapping[str, Any], tags: Mapping[str, str]
    ) -> Iterator[Run]:
        """An open run; it ends as finished, or as failed when the block raises."""
        with translated():
            experiment_id = self._experiment(experiment)
            self._end_left_over(experiment_id, name)
            made = self.client.create_run(experiment_id, run_name=name, tags=dict(tags))
            run = Run(self.client, made.info.run_id)
            items = [Param(key, str(value)) for key, value in params.items()]
            for start in range(0, len(items), MAX_PARAMS):
                self.client.log_batch(run.id, params=items[start : start + MAX_PARAMS])
        try:
            yield run
            run.flush()
        except BaseException:
            with translated():
                self.client.set_terminated(run.id, "FAILED")
            raise
        with translated():
            self.client.set_terminated(run.id, "FINISHED")

    def _experiment(self, name: str) -> str:
        found = self.client.get_experiment_by_name(name)
        if found is not None:
            return found.experiment_id
        return self.client.create_experiment(name, (self._artifact_root / name).resolve().as_uri())

    def _end_left_over(self, experiment_id: str, name: str) -> None:
        quoted = name.replace("'", "")
        open_runs = self.client.search_runs(
            [experiment_id], f"attributes.status = 'RUNNING' and attributes.run_name = '{quoted}'"
        )
        for run in open_runs:
            self.client.set_terminated(run.info.run_id, "KILLED")


def open_tracking(url: str, artifact_root: Path) -> Tracking:
    """Connect to MLflow: a database URL, or the address of an MLflow server.

    Raises:
        Unavailable: it cannot be reached.
    """
    if url.startswith("postgresql"):
        probe(url)  # MLflow itself would try for a minute and a half before it says anything
    with translated():
        client = MlflowClient(tracking_uri=url, registry_uri=url)
        client.search_experiments(max_results=1)  # makes the tables of an empty database
    return Tracking(client, artifact_root)


@contextmanager
def translated() -> Iterator[None]:
    """Raise MLflow's errors as ours."""
    try:
        yield
    except DBAPIError as error:
        raise Unavailable(
            f"the database of MLflow cannot be used: {error.orig}. The same call may be repeated."
        ) from error
    except MlflowException as error:
        if error.error_code in ("TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED"):
            raise Unavailable(f"MLflow cannot be used: {error}") from error
        raise StoreError(f"MLflow refused: {error}") from error
    except OSError as error:
        raise StoreError(f"MLflow could not write an artifact: {error}") from error
