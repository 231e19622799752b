"""Remember: what the strategy chose for memory becomes lessons, committed as a new revision of the bank."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from components import plugins
from components.memory.recall import is_useful, memory_block
from components.records import MemoryEntry
from flows.resources import Resources
from flows.stage import Deadline, Stage, StageResult, Write, run_stage
from store import bundles, memory, trajectories
from store.db import Conn

SPARE = 4
"""Entries looked at beyond those wanted, for the places of those that do not help."""


def remember(r: Resources, night: str, bundle_id: str) -> StageResult:
    """The stage: the entries of tonight's bundle, written once."""
    settings = r.settings.memory
    writer = plugins.make("memory", settings.writer.name, settings.writer.options)
    stage = Stage(
        agent=r.settings.agent,
        night=night,
        name="remember",
        versions={"writer": plugins.version_of(writer)},
        config=settings.model_dump(mode="json"),
        inputs=(bundle_id,),
    )

    def work(deadline: Deadline) -> Write:
        scope = r.settings.agent
        with r.db.connect() as conn:
            chosen = bundles.get(conn, bundle_id).memory_trajectories
            sources = trajectories.get(conn, r.files, list(chosen))
            parent = memory.head(conn, scope)
            bank = memory.bank(conn, scope)
        entries: list[MemoryEntry] = writer.write(sources, bank)
        deadline.check(f"embedding {len(entries)} lessons")
        vectors = r.embed([f"{entry.cue} {entry.content}" for entry in entries])
        change = memory.Change(entries, vectors, reason=f"night {night}")

        def write(conn: Conn) -> dict[str, Any]:
            revision = parent
            if entries:
                now = datetime.now(UTC)
                revision = memory.commit(conn, scope, change, stage.key, parent, now)
            return {
                "line": f"{len(entries)} lessons written, revision {revision}",
                "revision": revision or None,
                "before": parent or None,
                "lessons": [entry.content for entry in entries],
            }

        return write

    return run_stage(r, stage, work)


def in_service(r: Resources) -> int | None:
    """The memory that serves now: the bank's head, which a night moves forward and a person may take back."""
    with r.db.connect() as conn:
        return memory.head(conn, r.settings.agent) or None


def recall_blocks(r: Resources, revision: int | None, texts: Sequence[str]) -> list[str]:
    """What memory says to each of these openings, as text for the prompt; empty where it says nothing."""
    recalled = recall(r, revision, texts)
    return [memory_block(entries, r.settings.memory.max_chars).text for entries in recalled]


def recall(r: Resources, revision: int | None, texts: Sequence[str]) -> list[list[MemoryEntry]]:
    """The entries recalled for each of these openings, from one revision of the bank.

    An entry that was tried and does not help gives its place to the next best one.
    """
    if not revision or not r.settings.memory.recalled:
        return [[] for _ in texts]
    vectors = r.embed(texts)
    found: list[list[MemoryEntry]] = []
    with r.db.connect() as conn:
        for text, vector in zip(texts, vectors, strict=True):
            question = memory.Question(text, vector, k=r.settings.memory.recalled + SPARE)
            hits = memory.recall(conn, r.settings.agent, question, revision)
            useful = [hit.entry for hit in hits if is_useful(hit.entry)]
            found.append(useful[: r.settings.memory.recalled])
    return found
