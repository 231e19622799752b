"""What the flows put into prompts: the best lessons that were not tried in vain."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from flows.remember import recall, recall_blocks
from store import memory
from store.memory import Change
from tests.flows.homes import Home
from tests.kill_night import AGENT
from tests.store.records import entry

pytestmark = pytest.mark.postgres

ASKED = "Pay me back, order W290 came with a crack."


def test_a_lesson_that_does_not_help_gives_its_place_to_the_next(
    nothing_yet: Home, copy_of: Callable[..., Home]
) -> None:
    """Ten uses without a success: known from the next revision on. One lesson goes into a prompt."""
    first = replace(
        entry("e-1", "Pay me back, <order> came with a crack.", "escalate"), scope=AGENT
    )
    second = replace(entry("e-2", "I want my money back for <order>.", "refund"), scope=AGENT)
    other = replace(entry("e-3", "Where is the parcel?", "track"), scope=AGENT)
    with copy_of(nothing_yet, "memory.recalled=1").open() as r:
        vectors = r.embed([each.cue for each in (first, second, other)])
        now = datetime.now(UTC)
        with r.db.connect() as conn:
            lessons = Change([first, second], vectors[:2])
            assert memory.commit(conn, AGENT, lessons, "night 1", 0, now) == 1
            memory.note_uses(conn, AGENT, [(f"t-{n}", "e-1", 1, False) for n in range(10)])
            assert memory.commit(conn, AGENT, Change([other], vectors[2:]), "night 2", 1, now) == 2
        (before,), (after,) = recall(r, 1, [ASKED]), recall(r, 2, [ASKED])
        assert [each.id for each in before] == ["e-1"]
        assert [each.id for each in after] == ["e-2"]
        assert "refund" in recall_blocks(r, 2, [ASKED])[0]
        assert recall(r, None, [ASKED]) == [[]]
