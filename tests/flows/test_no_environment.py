"""A night without an environment: logs in tau-bench form, imitation, and replay of held-out decisions."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from components.evaluation.replay import decision_points
from flows import policies
from flows.resources import Resources
from flows.splits import is_held_out, overlaps, said_by_user
from store import bundles, ledger, nights, reports, trajectories
from tests.components.ingestion.logs import REAL_LOGS
from tests.flows.homes import Home
from tests.flows.support_logs import write_log
from tests.kill_night import AGENT, NIGHT

pytestmark = pytest.mark.postgres

NUM = 60
ROOM = 3500
"""Tokens, here bytes, that hold the shorter airline conversations."""


def without_environment(home: Home, log: Path) -> Home:
    more = ("environment=false", f"ingestion.paths=[{str(log)!r}]", "train.sft.batch=8")
    return replace(home, overrides=(*home.overrides, *more))


@pytest.fixture
def night_of(nothing_yet: Home, copy_of: Callable[..., Home]) -> Callable[..., Home]:
    def run(log: Path, *more: str) -> Home:
        home = without_environment(copy_of(nothing_yet, *more), log)
        home.night(NIGHT)
        return home

    return run


def outputs_of(r: Resources) -> dict[str, dict]:
    with r.db.connect() as conn:
        rows = ledger.of_night(conn, AGENT, NIGHT)
    assert [(row.stage, row.status) for row in rows if row.status != "done"] == []
    return {row.stage: row.output or {} for row in rows}


def check_night(home: Home, num: int, num_solved: int) -> None:
    """What must hold for any log of `num` conversations of which `num_solved` went well and nobody corrected one."""
    with home.open() as r:
        output = outputs_of(r)
        with r.db.connect() as conn:
            ids = trajectories.ids_of_night(conn, AGENT, NIGHT, "production")
            found = trajectories.get(conn, r.files, ids)
            bundle = bundles.get(conn, output["curate"]["bundle_id"])
            (stored,) = reports.of_night(conn, AGENT, NIGHT)
            row = nights.get(conn, AGENT, NIGHT)
        version = policies.registry_of(r).version(AGENT, output["offer"]["version"])
    assert len(found) == num
    assert sum(item.outcome is True for item in found) == num_solved
    assert output["mine"]["cases"] == num - num_solved

    # Imitated is what went well, and nothing that is held out.
    by_id = {item.id: item for item in found}
    assert all(item.split == ("test" if is_held_out(item) else "train") for item in found)
    imitated = [by_id[example.trajectory_id] for example in bundle.examples]
    assert imitated
    assert {item.split for item in imitated} == {"train"}
    assert {item.outcome for item in imitated} == {True}
    held = [item for item in found if item.split == "test" and decision_points(item)]
    said = [said_by_user(example.messages) for example in bundle.examples]
    assert overlaps([said_by_user(item.messages) for item in held], said) == []

    # Evaluated is every held-out conversation in which it is known what to do.
    scores = stored.report.scores
    assert set(scores["champion"]) == set(scores["challenger"]) == {item.id for item in held}

    # Nothing was practised, and the challenger is registered with its evidence.
    assert output["train"]["rl_steps"] == 0
    assert output["train"]["sft_steps"] > 0
    assert row is not None
    assert row.status == "done"
    assert version is not None
    assert version.tags["bundle"] == bundle.id
    assert version.tags["report"] == stored.report.id


def test_a_synthetic_log(night_of: Callable[..., Home], tmp_path: Path) -> None:
    """60 conversations, every third a failure: 40 solved, 20 failed."""
    home = night_of(write_log(tmp_path / "logs" / "support.json", NUM))
    check_night(home, NUM, 40)
    with home.open() as r:
        facts = decision_facts(r)
    assert facts["disjoint"] is True
    assert facts["delivery"] is not None


def decision_facts(r: Resources) -> dict[str, bool | None]:
    with r.db.connect() as conn:
        (stored,) = reports.of_night(conn, AGENT, NIGHT)
    assert stored.decision is not None
    return {each.name: each.passed for each in stored.decision.criteria}


@pytest.fixture
def airline() -> Path:
    log = REAL_LOGS / "tau_bench/gpt-4o-airline.prefix.json"
    if not log.exists():
        pytest.skip("the shared log collection is not here")
    return log.resolve()


def test_conversations_longer_than_the_context_train_nothing(
    night_of: Callable[..., Home], airline: Path
) -> None:
    """Every airline conversation begins with a policy of thousands of bytes; a tiny model sees 1536 at once."""
    home = night_of(airline)
    with home.open() as r:
        output = outputs_of(r)
    assert output["ingest"]["trajectories"] == 96
    assert output["mine"]["cases"] == 56
    assert output["curate"]["examples"] > 0
    assert re.match(r"trained nothing, because none of \d+ examples", output["train"]["line"])
    assert "evaluate" not in output


@pytest.mark.slow
def test_the_real_airline_log(
    night_of: Callable[..., Home], airline: Path, tiny_model: Path, tmp_path: Path
) -> None:
    """96 conversations, 40 with reward 1, without the long policy page, shown to a model with room for them."""
    episodes = orjson.loads(airline.read_bytes())
    for each in episodes:
        each["traj"][0]["content"] = each["traj"][0]["content"][:200]
    log = tmp_path / "airline.json"
    log.write_bytes(orjson.dumps(episodes))
    wide = tmp_path / "wide"
    shutil.copytree(tiny_model, wide)
    config = json.loads((wide / "config.json").read_text())
    (wide / "config.json").write_text(json.dumps(config | {"max_position_embeddings": ROOM}))
    home = night_of(
        log,
        f"model.name={str(wide)!r}",
        f"model.max_context={ROOM}",
        f"train.max_tokens_per_pack={ROOM}",
        "curation.score_steps=1",
        "engine.slots=8",
        "evaluation.max_tokens=2",
    )
    check_night(home, 96, 40)
