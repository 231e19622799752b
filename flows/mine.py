"""Mine: tonight's failed trajectories become cases, and cases become named modes followed across nights."""

from collections import Counter
from typing import Any

from components import plugins
from components.records import FailureCase
from flows.resources import Resources
from flows.stage import Deadline, Stage, StageResult, Write, run_stage
from store import cases, modes, trajectories
from store.db import Conn

CHUNK = 500
"""Trajectories read and mined at a time."""


def mine(r: Resources, night: str, ingested: str) -> StageResult:
    """The stage. `ingested`: digest of the ids that tonight's ingestion left."""
    settings = r.settings.mining
    miner = plugins.make("mining", settings.miner.name, settings.miner.options)
    finder = plugins.make("mining", settings.modes.name, settings.modes.options)
    stage = Stage(
        agent=r.settings.agent,
        night=night,
        name="mine",
        versions={"miner": plugins.version_of(miner), "modes": plugins.version_of(finder)},
        config=settings.model_dump(mode="json"),
        inputs=(ingested,),
    )

    def work(deadline: Deadline) -> Write:
        with r.db.connect() as conn:
            ids = trajectories.ids_of_night(conn, r.settings.agent, night, "production")
            known = modes.of_agent(conn, r.settings.agent)
        found: list[FailureCase] = []
        for start in r.track(range(0, len(ids), CHUNK), "mining failures"):
            deadline.check(f"mining {len(ids)} trajectories")
            with r.db.connect() as conn:
                chunk = trajectories.get(conn, r.files, ids[start : start + CHUNK])
            found += miner.mine(chunk)
        placed, after = finder.find(found, known, r.embed, night)
        tonight = [mode for mode in after if mode.counts.get(night)]

        def write(conn: Conn) -> dict[str, Any]:
            cases.put(conn, placed, r.settings.agent, night)
            modes.put(conn, after, r.settings.agent)
            return {
                "line": f"{len(placed)} failures in {len(tonight)} modes, of {len(ids)} trajectories",
                "trajectories": len(ids),
                "cases": len(placed),
                "modes": len(tonight),
                "faults": dict(Counter(case.fault for case in placed)),
            }

        return write

    return run_stage(r, stage, work)
