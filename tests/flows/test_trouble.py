"""Trouble: no data, one-sided data, rewards that are none, no time, no space, no database, a bad line among good ones."""

import json
import re
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from components.errors import ConfigError, NightRunning, StoreError
from components.records import NightSummary
from components.serial import load
from flows import policies
from flows.ingest import ingest
from flows.mine import mine
from flows.stage import Deadline, NightFailed, Stage, Write, run_stage
from store import bundles, ledger, memory, nights, quarantine, trajectories
from store.db import Conn
from store.ledger import LedgerRow
from tests.flows.homes import END_SESSIONS, Home, rows_of
from tests.flows.support_logs import episode
from tests.kill_night import AGENT, NIGHT, TINY, Nights, Project, run_night
from tests.night_rows import differences

pytestmark = [pytest.mark.postgres, pytest.mark.network]

LIMIT_S = 120.0
"""A tiny night takes seconds; one that takes longer than this hangs."""
ALL = ["ingest", "mine", "curate", "remember", "train", "evaluate", "offer"]


def summary_of(home: Home) -> NightSummary:
    with home.open() as r, r.db.connect() as conn:
        row = nights.get(conn, AGENT, NIGHT)
    assert row is not None
    return load(NightSummary, row.summary)


def ledger_of(home: Home) -> list[LedgerRow]:
    with home.open() as r, r.db.connect() as conn:
        return ledger.of_night(conn, AGENT, NIGHT)


def ran(home: Home, before: list[LedgerRow]) -> list[str]:
    """The stages that were done since then."""
    known = {row.key for row in before}
    return [row.stage for row in ledger_of(home) if row.key not in known and row.status == "done"]


# --- data -------------------------------------------------------------------------------------------------------------


def test_no_data_at_all(nothing_yet: Home, copy_of: Callable[..., Home]) -> None:
    home = copy_of(nothing_yet)
    home.night(NIGHT)
    made = summary_of(home)
    assert [(line.name, line.status) for line in made.stages] == [
        *((stage, "done") for stage in ALL[:5]),
        ("evaluate", "skipped"),
        ("offer", "skipped"),
    ]
    why = "trained nothing, because 0 examples are fewer than 8"
    assert {line.line for line in made.stages[4:]} == {why}
    assert (made.modes, made.lessons, made.accepted) == ((), (), None)
    with home.open() as r:
        assert [version.version for version in policies.registry_of(r).versions("help-desk")] == [
            "1"
        ]
    before = rows_of(home)
    home.night(NIGHT)
    assert differences(before, rows_of(home)) == []


def test_only_successes(nothing_yet: Home, copy_of: Callable[..., Home], tmp_path: Path) -> None:
    """Nothing is mined; what went well is imitated; the report says that there are no failures."""
    log = tmp_path / "support.json"
    log.write_bytes(orjson.dumps([episode(number, solved=True) for number in range(40)]))
    home = copy_of(
        nothing_yet, "environment=false", f"ingestion.paths=[{str(log)!r}]", "train.sft.batch=8"
    )
    home.night(NIGHT)
    made = summary_of(home)
    assert made.counts["cases"] == made.counts["modes"] == 0
    assert made.counts["examples"] > 0
    assert made.counts["sft_steps"] > 0
    assert (made.modes, made.lessons) == ((), ())
    assert made.stages[1].line == "0 failures in 0 modes, of 40 trajectories"
    assert made.challenger_digest is not None


def test_infrastructure_failures_are_mined_and_never_trained_on(
    home: Home, one_day: Home, tmp_path: Path
) -> None:
    """A day on which the endpoint answered every customer with an error."""
    log = tmp_path / "down.jsonl"
    lines = [
        json.loads(line)
        for path in sorted((one_day.folder / "logs").rglob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    firsts = {line["conversation"]: line for line in reversed(lines) if line["kind"] == "exchange"}
    sampled = ("prompt_ids", "completion_ids", "logprobs", "policy_version", "response")
    log.write_text(
        "".join(
            json.dumps(
                {key: value for key, value in line.items() if key not in sampled}
                | {"response": None, "status": 503, "error": "503: the engine is down"}
            )
            + "\n"
            for line in firsts.values()
        )
    )
    home = replace(home, overrides=(*home.overrides, f"ingestion.paths=[{str(log)!r}]"))
    home.night(NIGHT)
    with home.open() as r, r.db.connect() as conn:
        found = trajectories.get(
            conn, r.files, trajectories.ids_of_night(conn, AGENT, NIGHT, "production")
        )
        output = {row.stage: row.output or {} for row in ledger.of_night(conn, AGENT, NIGHT)}
        bundle = bundles.get(conn, output["curate"]["bundle_id"])
        assert memory.head(conn, "help-desk") == 0
    assert len(found) == 10
    assert all((item.stop_reason or "").startswith("error: 503") for item in found)
    assert output["mine"]["faults"] == {"infrastructure": 10}
    assert bundle.examples == ()
    assert {item.reason for item in bundle.dropped} == {"infrastructure fault"}
    assert output["train"]["line"].startswith("trained nothing, because 0 examples")


def test_a_bad_line_among_good_ones_is_quarantined_with_its_place(
    home: Home, one_day: Home, tmp_path: Path
) -> None:
    (path,) = (one_day.folder / "logs").rglob("*.jsonl")
    good = path.read_bytes().splitlines(keepends=True)
    log = tmp_path / "mixed.jsonl"
    log.write_bytes(b"".join([*good[:3], b'{"nightshift": 1, "kind": "exch\n', *good[3:]]))
    with home.open(f"ingestion.paths=[{str(log)!r}]") as r:
        done = ingest(r, NIGHT)
        with r.db.connect() as conn:
            (found,) = quarantine.page(conn, "help-desk")
            num = len(trajectories.ids_of_night(conn, AGENT, NIGHT, "production"))
    assert done.status == "done"
    assert num == 10
    assert (found.uri, found.line, found.start) == (str(log), 4, len(b"".join(good[:3])))
    assert found.text.startswith('{"nightshift": 1, "kind": "exch')
    assert "JSON" in found.reason


# --- rewards ----------------------------------------------------------------------------------------------------------


def rewards(name: str, **options: Any) -> str:
    told = ", ".join(f"{key} = {value}" for key, value in options.items())
    return f'train.rl.rewards=[{{name = "tests.fakes_rewards:{name}", options = {{{told}}}}}]'


def test_changed_rewards_rerun_only_what_depends_on_them_and_flat_groups_teach_nothing(
    one_night: Home, copy_of: Callable[..., Home]
) -> None:
    """All succeed: no group has a signal, and without anchors no step is taken, so practice changes no weight."""
    home = copy_of(one_night, rewards("Constant", value=1.0), "train.rl.anchor_batch=0")
    before = ledger_of(home)
    home.night(NIGHT)
    assert ran(home, before) == ["train", "evaluate", "offer"]
    output = next(row.output or {} for row in ledger_of(home)[::-1] if row.stage == "train")
    assert output["rl_steps"] == 2
    with home.open() as r:
        adapter, imitated = (
            (r.files.folder(output[name]) / "adapter_model.safetensors").read_bytes()
            for name in ("challenger", "sft")
        )
    assert adapter == imitated


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_flat_groups_leave_finite_weights_and_figures(
    value: float, one_night: Home, copy_of: Callable[..., Home]
) -> None:
    """All fail, or all succeed: only the imitation part of the step counts."""
    from safetensors.numpy import load_file

    home = copy_of(one_night, rewards("Constant", value=value))
    with home.open() as r:
        output, figures = _train_again(r)
        weights = load_file(r.files.folder(output["challenger"]) / "adapter_model.safetensors")
    assert all((each == each).all() for each in weights.values())  # NaN differs from itself
    assert figures["groups_with_signal"] == 0.0
    assert figures["zero_variance_rate"] == 1.0
    assert abs(figures["loss"]) < float("inf")


def _train_again(r: Any) -> tuple[dict[str, Any], dict[str, float]]:
    """The output of tonight's training under changed settings, and the figures of its last practice round and step."""
    from flows.train import scratch, train

    with r.db.connect() as conn:
        rows = {row.stage: row.output or {} for row in ledger.of_night(conn, AGENT, NIGHT)}
        known = {row.key for row in ledger.of_night(conn, AGENT, NIGHT)}
    done = train(r, NIGHT, rows["curate"]["bundle_id"], rows["remember"]["revision"])
    assert done.ok, done.cause
    with r.db.connect() as conn:
        (key,) = {row.key for row in ledger.of_night(conn, AGENT, NIGHT)} - known
    rounds = json.loads((scratch(r, key) / "rl" / "rounds.json").read_text())
    return done.output, {**rounds["steps"][-1], **rounds["curve"][-1]}


def test_a_reward_that_is_no_number_counts_as_not_scored(
    one_night: Home, copy_of: Callable[..., Home], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of four trajectories two are scored, 1 and 0, so the group has a signal; the other two are left out and named."""
    home = copy_of(one_night, rewards("NotANumber", num_scored=2), "train.rl.group_size=4")
    with home.open() as r:
        _, figures = _train_again(r)
    assert figures["groups_with_signal"] == 2.0
    assert abs(figures["loss"]) < float("inf")
    said = capsys.readouterr().err.replace("\n", " ")
    assert "'tests.fakes_rewards:NotANumber' gave no finite number for 2 of 4 trajectories" in said


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("Broken", "failed on task '.+', trajectories '.+': ZeroDivisionError"),
        ("TooFew", "must give one reward per trajectory: got 1, expected 2"),
    ],
)
def test_a_reward_plug_in_that_fails_is_named_and_nothing_is_half_written(
    name: str, complaint: str, one_night: Home, copy_of: Callable[..., Home]
) -> None:
    home = copy_of(one_night, rewards(name))
    before = rows_of(home)
    with pytest.raises(
        NightFailed, match=f"reward plug-in 'tests.fakes_rewards:{name}'.*{complaint}"
    ):
        home.night(NIGHT)
    after = rows_of(home)
    (failed,) = [row for row in after["ledger"] if row["status"] == "failed"]
    assert failed["stage"] == "train"
    assert name in failed["cause"]
    for table in ("ledger", "night"):  # the failure itself is told
        del before[table], after[table]
    assert differences(before, after) == []


# --- time, settings, space, database ----------------------------------------------------------------------------------


def test_a_deadline_is_a_named_cause_and_the_night_goes_on(
    one_night: Home, copy_of: Callable[..., Home]
) -> None:
    """Without time to remember, the night trains and evaluates with the memory that is there."""
    home = copy_of(one_night, "deadlines.remember=0.000001", "memory.max_chars=390")
    before = ledger_of(home)
    with pytest.raises(NightFailed, match="remember: StageExpired: stage 'remember' ran"):
        home.night(NIGHT)
    assert ran(home, before) == ["train", "evaluate"]
    (failed,) = [row for row in ledger_of(home) if row.status == "failed"]
    assert "raise deadlines.remember" in (failed.cause or "")
    made = summary_of(home)
    # The same memory and data make the same challenger, which is offered already.
    assert [line.status for line in made.stages] == [
        *("unchanged", "unchanged", "unchanged", "failed", "done", "done", "unchanged")
    ]
    assert "Some stages failed" in made.note


def test_a_wrong_plug_in_stops_a_night_before_it_begins(home: Home) -> None:
    """A wrong option of the last stage is told in the first seconds."""
    with pytest.raises(ConfigError, match="Did you mean 'strict'"):
        home.night(NIGHT, 'gate.name="strickt"')
    with pytest.raises(ConfigError, match=r"unknown setting 'train\.rl\.loss\.clip_hihg'"):
        home.night(NIGHT, "train.rl.loss.clip_hihg=0.3")
    with home.open() as r, r.db.connect() as conn:
        assert nights.get(conn, AGENT, NIGHT) is None


def test_a_damaged_file_store_is_a_named_cause_not_a_crash(home: Home) -> None:
    """The tokens of the day are gone: mining fails with the object's name, and works once they are back."""
    with home.open() as r:
        assert ingest(r, NIGHT).ok
    objects = home.folder / "files" / "objects"
    objects.rename(objects.with_name("away"))
    with pytest.raises(NightFailed, match="mine: StoreError: no object"):
        home.night(NIGHT)
    made = summary_of(home)
    assert [line.status for line in made.stages] == ["unchanged", "failed", *["skipped"] * 5]
    objects.with_name("away").rename(objects)
    with home.open() as r:
        output = ingest(r, NIGHT).output
        assert mine(r, NIGHT, output["state"]).status == "done"


def test_a_champion_that_was_deleted_is_said_and_nothing_else_serves(
    one_night: Home, copy_of: Callable[..., Home]
) -> None:
    """Version 2 exists and is not taken in place of the champion; a person's choice repairs it."""
    home = copy_of(one_night)
    with home.open() as r:
        r.tracking.client.delete_model_version("nightshift-help-desk", "1")
    with pytest.raises(StoreError, match="has no champion, though versions up to 2 were trained"):
        home.do("flows.day:day")
    with pytest.raises(StoreError, match="nightshift promote --version"):
        home.night("2026-12-01")
    with home.open() as r:
        with r.db.connect() as conn:
            assert nights.get(conn, AGENT, "2026-12-01") is None
        assert [each.version for each in policies.registry_of(r).versions("help-desk")] == ["2"]
    told = {"version": "2", "override": True, "actor": "mara", "reason": "it was deleted"}
    assert home.do("flows.operate:promote", **told) == 0
    with home.open() as r:
        assert policies.ensure_champion(r).version == "2"


def run_night_on_a_small_disk(project: Project, answer: Any) -> None:
    """No file of this process may grow beyond 16 kB: less than an adapter, or than the tokens of a day."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (16_000, 16_000))
    run_night(project, answer)


def project_of(home: Home, folder: Path) -> Project:
    return Project(TINY, home.folder, home.options(), folder / "log.txt")


def check_small_disk(starter: Nights, project: Project, home: Home, stage: str) -> None:
    """The stage that first needs more space fails and says so; nothing unfinished stays."""
    process, _ = starter.start(run_night_on_a_small_disk, project)
    starter.wait(process)
    assert process.exitcode == 1
    (failed,) = [row for row in ledger_of(home) if row.status != "done"]
    assert (failed.stage, failed.status) == (stage, "failed")
    assert re.search("no space left|File too large", failed.cause or "")
    assert "ree space" in (failed.cause or "")
    assert list((home.folder / "files" / "partial").iterdir()) == []
    assert list(home.folder.glob("work/**/tmp-*")) == []


def test_a_full_disk_is_said_and_the_night_is_whole_once_there_is_space(
    home: Home, one_night: Home, tmp_path: Path
) -> None:
    project = project_of(home, tmp_path)
    starter = Nights(LIMIT_S)
    check_small_disk(starter, project, home, "ingest")
    starter.run(run_night, project)
    assert differences(rows_of(one_night), rows_of(home)) == []


def test_a_full_disk_while_training(
    one_night: Home, copy_of: Callable[..., Home], tmp_path: Path
) -> None:
    home = copy_of(one_night, rewards("Uneven", best=0.5))
    check_small_disk(Nights(LIMIT_S), project_of(home, tmp_path), home, "train")


def test_a_lost_database_connection_is_said_and_the_night_is_whole_afterwards(
    home: Home, one_night: Home, tmp_path: Path
) -> None:
    """All sessions end while the night practises, MLflow's and the one that holds the night's lock included."""
    project = project_of(home, tmp_path)
    starter = Nights(LIMIT_S)
    process, _ = starter.start(run_night, project)
    until = time.monotonic() + LIMIT_S
    while not any(home.folder.glob("work/train-*/rl/rounds.json")):
        assert process.is_alive(), project.log.read_text()
        assert time.monotonic() < until
        time.sleep(0.005)
    with home.server.apart("tests") as conn:
        for suffix in ("", "_mlflow"):
            conn.execute(END_SESSIONS, (home.name + suffix,))
    starter.wait(process)
    assert process.exitcode in (0, 1), "the night hangs without its connections"
    if process.exitcode == 1:
        assert "may be repeated" in project.log.read_text().replace("\n", " ")
        starter.run(run_night, project)
    assert differences(rows_of(one_night), rows_of(home)) == []


# --- two processes on one night ---------------------------------------------------------------------------------------


def test_stage_that_was_taken_over_stops_and_writes_nothing(
    nothing_yet: Home, copy_of: Callable[..., Home]
) -> None:
    """While this process had lost its lock, another began the same work."""
    later = nights.Night("2026-12-02", AGENT, "done", datetime.now(UTC))
    with copy_of(nothing_yet).open() as r:
        stage = Stage(AGENT, NIGHT, "mine", {}, {}, ())

        def work(deadline: Deadline) -> Write:
            with r.db.connect() as conn:
                ledger.begin(conn, stage.work, "another", datetime.now(UTC))
            deadline.check("nothing yet")

            def write(conn: Conn) -> dict[str, Any]:
                nights.put(conn, later)
                return {}

            return write

        with pytest.raises(NightRunning, match="taken over by 'another'"):
            run_stage(r, stage, work)
        with r.db.connect() as conn:
            assert nights.get(conn, AGENT, later.night) is None
            (row,) = ledger.of_night(conn, AGENT, NIGHT)
        assert (row.status, row.owner) == ("running", "another")
    deadline = Deadline("mine", 60)
    deadline.lost.set()
    with pytest.raises(NightRunning, match="stage 'mine' was taken over"):
        deadline.check("mining")
