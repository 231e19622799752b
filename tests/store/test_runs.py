"""MLflow runs on the embedded PostgreSQL."""

from pathlib import Path

import pytest

from components.errors import Unavailable
from store.db import Database
from store.runs import Tracking, open_tracking

pytestmark = pytest.mark.postgres


def test_run_keeps_params_metrics_and_texts(tracking: Tracking, tmp_path: Path) -> None:
    """2,500 figures go out in three batches, 150 parameters in two; all arrive."""
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("a")
    params = {f"p{number}": number for number in range(150)}
    with tracking.run("night", "train one", params, {"night": "2026-01-31"}) as run:
        for step in range(1250):
            run.log_metrics({"loss": 1.0 / (step + 1), "reward": float(step)}, step)
        run.log_text("# Report", "report.md")
        run.log_artifact(tmp_path / "notes")
        run.log_artifact(tmp_path / "notes" / "a.txt")
    found = tracking.client.get_run(run.id)
    assert found.info.status == "FINISHED"
    assert found.data.params == {key: str(value) for key, value in params.items()}
    assert found.data.tags["night"] == "2026-01-31"
    history = tracking.client.get_metric_history(run.id, "reward")
    assert [(point.step, point.value) for point in history] == [(n, float(n)) for n in range(1250)]
    names = {item.path for item in tracking.client.list_artifacts(run.id)}
    assert names == {"report.md", "notes", "a.txt"}


def test_plot_is_kept(tracking: Tracking) -> None:
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().plot([0, 1], [1, 0])
    with tracking.run("night", "plot", {}, {}) as run:
        run.log_figure(figure, "reward.png")
    assert [item.path for item in tracking.client.list_artifacts(run.id)] == ["reward.png"]


def test_failed_run_says_so(tracking: Tracking) -> None:
    with pytest.raises(ZeroDivisionError), tracking.run("night", "bad", {}, {}) as run:
        raise ZeroDivisionError
    assert tracking.client.get_run(run.id).info.status == "FAILED"


def test_run_left_open_by_a_killed_process_is_closed(tracking: Tracking) -> None:
    with tracking.run("night", "first", {}, {}) as run:
        pass
    left = tracking.client.create_run(
        tracking.client.get_run(run.id).info.experiment_id, run_name="train two"
    )
    with tracking.run("night", "train two", {}, {}) as again:
        assert tracking.client.get_run(left.info.run_id).info.status == "KILLED"
        assert tracking.client.get_run(again.id).info.status == "RUNNING"


def test_absent_database_may_be_repeated(database: Database, tmp_path: Path) -> None:
    url = database.sqlalchemy_url("mlflow").replace("/mlflow?", "/no_such_database?")
    with pytest.raises(Unavailable, match="no_such_database"):
        open_tracking(url, tmp_path)
