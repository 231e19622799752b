"""A whole night: what it writes, that it writes it once, and that only one runs at a time."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from components.errors import NightRunning
from components.records import NightSummary
from components.serial import load
from flows import policies
from flows.cli import main
from flows.splits import overlaps, said_by_user
from store import bundles, ledger, memory, modes, nights, reports, strategies, tasks, trajectories
from tests.flows.homes import Home, rows_of, versions_of
from tests.kill_night import AGENT, NIGHT, TINY
from tests.night_rows import adapter_files, differences

pytestmark = [pytest.mark.postgres, pytest.mark.network]

STAGES = ["ingest", "mine", "curate", "remember", "train", "evaluate", "offer"]
WRITTEN = {
    "night",
    "ledger",
    "log_file",
    "raw_record",
    "trajectory",
    "failure_case",
    "failure_mode",
    "failure_mode_night",
    "strategy",
    "bundle",
    "bundle_item",
    "task",
    "reference_solution",
    "memory_entry",
    "memory_vector",
    "memory_revision",
    "memory_live",
    "memory_use",
    "report",
}
"""Tables that an ordinary night fills. The others are filled by people, or by trouble."""


def test_every_stage_is_done_once(one_night: Home) -> None:
    with one_night.open() as r, r.db.connect() as conn:
        found = ledger.of_night(conn, AGENT, NIGHT)
        night = nights.get(conn, AGENT, NIGHT)
    assert [(row.stage, row.status, row.attempts) for row in found] == [
        (stage, "done", 1) for stage in STAGES
    ]
    assert night is not None
    assert (night.status, night.champion_version, night.challenger_version) == ("done", "1", "2")
    summary = load(NightSummary, night.summary)
    assert [(line.name, line.status) for line in summary.stages] == [(s, "done") for s in STAGES]


def test_every_table_of_a_night_has_rows(one_night: Home) -> None:
    found = rows_of(one_night)
    assert {table for table in WRITTEN if not found[table]} == set()
    assert {table for table, some in found.items() if some} == WRITTEN | {"migration"}


def test_the_challenger_is_registered_with_its_lineage(one_night: Home) -> None:
    """Each tag against the row that it names."""
    with one_night.open() as r:
        found = policies.registry_of(r).version(AGENT, "2")
        with r.db.connect() as conn:
            (bundle,) = bundles.recent(conn, AGENT)
            strategy = strategies.accepted(conn, AGENT)
            (report,) = reports.of_night(conn, AGENT, NIGHT)
            outputs = {row.stage: row.output or {} for row in ledger.of_night(conn, AGENT, NIGHT)}
        adapter = outputs["train"]["challenger"]
        files = adapter_files(r.files, adapter)
    assert found is not None
    assert strategy is not None
    assert found.tags["night"] == NIGHT
    assert found.tags["parent_version"] == "1"
    assert found.tags["bundle"] == bundle.id == outputs["curate"]["bundle_id"]
    assert found.tags["strategy"] == strategy.id == bundle.strategy_id
    assert found.tags["memory_revision"] == "1"
    assert found.tags["report"] == report.report.id
    assert report.decision is not None
    assert found.tags["gate"] == ("accepted" if report.decision.accepted else "refused")
    assert found.tags["adapter"] == adapter == found.folder.name
    assert {"COMPLETE", "adapter_model.safetensors"} <= files.keys()


def test_the_evidence_is_kept_beside_the_challenger(one_night: Home) -> None:
    """Every artifact that the offer leaves in MLflow; the confusion counts each of the 6 tasks x 1 seed once."""
    with one_night.open() as r:
        client = r.tracking.client
        (experiment,) = [e for e in client.search_experiments() if e.name == AGENT]
        runs = client.search_runs([experiment.experiment_id])
        (run,) = [found for found in runs if found.info.run_name == f"offer {NIGHT}"]
        kept = {item.path for item in client.list_artifacts(run.info.run_id)}
        counts = json.loads(
            Path(client.download_artifacts(run.info.run_id, "failure_modes.json")).read_text()
        )
    assert kept == {
        *("report.json", "gate.json", "strategy.py"),
        *("success.png", "failure_modes.json", "failure_modes.png"),
    }
    assert sum(sum(row.values()) for row in counts.values()) == 6


def test_every_optimizer_step_and_every_round_of_practice_is_logged(one_night: Home) -> None:
    """2 rounds of 2 steps: the sampler's log-probabilities are checked in 4 steps, success is seen in 2 rounds."""
    with one_night.open() as r:
        client = r.tracking.client
        (experiment,) = [e for e in client.search_experiments() if e.name == AGENT]
        runs = client.search_runs([experiment.experiment_id])
        (run,) = [found for found in runs if found.info.run_name == f"train {NIGHT}"]

        def steps(key: str) -> list[int]:
            return [each.step for each in client.get_metric_history(run.info.run_id, key)]

        assert steps("rl/logprob_difference_mean") == [1, 2, 3, 4]
        assert steps("rl/zero_variance_rate") == [1, 2, 3, 4]
        assert steps("practice/success") == [1, 2]


def test_the_challenger_differs_from_its_parents(one_night: Home) -> None:
    """The challenger practised beyond imitation, and the branch by SFT alone did not."""
    with one_night.open() as r, r.db.connect() as conn:
        output = {row.stage: row.output or {} for row in ledger.of_night(conn, AGENT, NIGHT)}[
            "train"
        ]
    assert output["sft_steps"] > 0
    assert output["rl_steps"] == 2
    assert len({output["sft"], output["sft_only"], output["challenger"]}) == 3


def test_a_second_run_changes_nothing_and_says_so(
    one_night: Home, copy_of: Callable[..., Home], capsys: pytest.CaptureFixture[str]
) -> None:
    home = copy_of(one_night)
    before = rows_of(home)
    registered = versions_of(home)
    capsys.readouterr()
    assert home.night(NIGHT) == NIGHT
    printed = capsys.readouterr()
    assert f"Night {NIGHT} is done already: nothing changed" in printed.out
    assert [line.split()[:2] for line in printed.err.splitlines() if "unchanged" in line] == [
        [stage, "unchanged"] for stage in STAGES
    ]
    assert differences(before, rows_of(home)) == []
    assert versions_of(home) == registered


def test_a_second_night_is_refused_while_one_runs(home: Home) -> None:
    with home.open() as r, ledger.night_lock(r.db, AGENT):
        with pytest.raises(NightRunning) as caught:
            home.night()
        with r.db.connect() as conn:
            assert nights.recent(conn, AGENT) == []
    said = str(caught.value)
    assert re.search(r"'nightshift night, pid \d+ on \S+' since 2\d{3}-\d\d-\d\d", said)
    assert "run the same command again" in said


@pytest.fixture(scope="session")
def prefect() -> Iterator[None]:
    """A Prefect server for the whole run."""
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=300):
        yield


@pytest.mark.usefixtures("prefect")
def test_a_night_as_a_prefect_flow_leaves_the_same_rows_and_one_task_run_per_stage(
    home: Home, one_night: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.client.orchestration import get_client

    from flows.nightly import nightly

    for name in ("NIGHTSHIFT_HOME", "NIGHTSHIFT_DATABASE_URL", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    overrides = home.options(f"home={str(home.folder)!r}")
    assert nightly(night=NIGHT, config=str(TINY), overrides=overrides) == NIGHT
    assert differences(rows_of(one_night), rows_of(home)) == []
    assert versions_of(home) == versions_of(one_night)
    with get_client(sync_client=True) as client:
        runs = client.read_task_runs()
        (flow_run,) = client.read_flow_runs()
    assert flow_run.state_name == "Completed"
    assert sorted(run.name.rsplit("-", 1)[0] for run in runs) == sorted(STAGES)
    assert {run.state_name for run in runs} == {"Completed"}


@pytest.mark.usefixtures("prefect")
def test_a_night_that_is_not_whole_ends_the_command_with_one(
    nothing_yet: Home,
    copy_of: Callable[..., Home],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No time to remember; the same night with time is whole, and the command ends with zero."""
    for name in ("NIGHTSHIFT_HOME", "NIGHTSHIFT_DATABASE_URL", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    home = copy_of(nothing_yet)
    told = [part for each in home.options(f"home={str(home.folder)!r}") for part in ("--set", each)]
    settings, night = ["--config", str(TINY), *told], ["night", "--date", NIGHT]
    assert main([*settings, "--set", "deadlines.remember=0", *night]) == 1
    assert "NightFailed: night 2026-11-30 is not whole" in capsys.readouterr().err
    assert main([*settings, *night]) == 0
    with home.open() as r, r.db.connect() as conn:
        row = nights.get(conn, AGENT, NIGHT)
    assert row is not None
    assert row.status == "done"


def test_lessons_are_recalled_into_the_prompts(one_night: Home) -> None:
    """The champion plays with the memory that served the day, which was empty; the challenger with tonight's."""
    with one_night.open() as r, r.db.connect() as conn:
        lessons = [entry.content for entry in memory.bank(conn, AGENT)]
        found = trajectories.get(
            conn, r.files, trajectories.ids_of_night(conn, AGENT, NIGHT, "evaluation")
        )
        output = {row.stage: row.output or {} for row in ledger.of_night(conn, AGENT, NIGHT)}[
            "train"
        ]
    assert lessons
    ours = policies.version_name(output["challenger"])
    openings = {True: 0, False: 0}
    for item in found:
        said = "\n".join(message.text for message in item.turns[0].observation)
        taught = any(lesson in said for lesson in lessons)
        if item.policy == "base":
            assert not taught
        if item.policy == ours:
            openings[taught] += 1
    assert openings == {True: 6, False: 2}  # all tasks with memory, and `memory_tasks` without


def test_nothing_trained_on_is_evaluated_on(one_night: Home) -> None:
    with one_night.open() as r, r.db.connect() as conn:
        (row,) = bundles.recent(conn, AGENT)
        examples = bundles.get(conn, row.id).examples
        (report,) = reports.of_night(conn, AGENT, NIGHT)
        output = {row.stage: row.output or {} for row in ledger.of_night(conn, AGENT, NIGHT)}
        practised = tasks.get(conn, output["train"]["practised"])
        held = tasks.get(conn, sorted(report.report.scores["champion"]))
    assert [task.split for task in held] == ["test"] * 6
    assert [task.split for task in practised] == ["train"] * 8
    trained = [said_by_user(example.messages) for example in examples]
    trained += [task.instruction for task in practised]
    assert overlaps([task.instruction for task in held], trained) == []


def test_modes_count_tonights_cases(one_night: Home) -> None:
    with one_night.open() as r, r.db.connect() as conn:
        found = modes.of_agent(conn, AGENT)
        counted = {mode.id: mode.counts[NIGHT] for mode in found}
        cases = conn.execute("select mode_id, count(*) from failure_case group by 1").fetchall()
    assert dict(cases) == counted
    assert sum(counted.values()) == 10  # a random model fails every customer
