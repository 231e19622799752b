"""The memory bank: revisions, rollback, recall by two rankings."""

import dataclasses
from datetime import datetime

import pytest

from components.errors import Conflict, RecordError, StoreError
from store import memory
from store.db import Conn
from store.memory import Change, Question
from tests.store.records import entry, unit

pytestmark = pytest.mark.postgres

REFUND = entry("e-1", "customer wants money back", "Check the order status before a refund.")
ADDRESS = entry("e-2", "change of address", "Ask for the postal code first.")
REFUND_2 = dataclasses.replace(REFUND, version=2, content="Look up the order, then refund.")


def first_two(conn: Conn, now: datetime) -> int:
    change = Change([REFUND, ADDRESS], [unit(0), unit(1)])
    return memory.commit(conn, "desk", change, "night 1", 0, now)


def test_revisions_and_rollback(conn: Conn, now: datetime) -> None:
    """r1 = {e-1 v1, e-2}, r2 = {e-1 v2}, r3 = back to r1, r4 = e-2 removed; every one stays readable."""
    assert memory.head(conn, "desk") == 0
    assert memory.bank(conn, "desk") == []
    assert first_two(conn, now) == 1
    assert (
        memory.commit(conn, "desk", Change([REFUND_2], [unit(2)], ["e-2"]), "night 2", 1, now) == 2
    )
    assert memory.bank(conn, "desk") == [REFUND_2]
    assert memory.rollback(conn, "desk", 1, "ann", "lesson was wrong", now) == 3
    assert memory.bank(conn, "desk") == [REFUND, ADDRESS]
    assert memory.commit(conn, "desk", Change([], [], ["e-2"]), "night 3", 3, now) == 4
    held = [memory.bank(conn, "desk", revision) for revision in range(5)]
    assert held == [[], [REFUND, ADDRESS], [REFUND_2], [REFUND, ADDRESS], [REFUND]]
    newest = memory.revisions(conn, "desk")
    assert [(row.revision, row.parent, row.restores) for row in newest] == [
        (4, 3, None),
        (3, 2, 1),
        (2, 1, None),
        (1, None, None),
    ]
    assert (newest[1].actor, newest[1].reason) == ("ann", "lesson was wrong")


def test_same_key_again_makes_no_revision(conn: Conn, now: datetime) -> None:
    """A night that is run again commits with its old parent; so does a change that changes nothing."""
    first_two(conn, now)
    assert first_two(conn, now) == 1
    assert memory.commit(conn, "desk", Change([REFUND], [unit(0)]), "other key", 1, now) == 1
    assert memory.head(conn, "desk") == 1


def test_bank_that_moved_on_is_refused(conn: Conn, now: datetime) -> None:
    first_two(conn, now)
    with pytest.raises(Conflict, match="at revision 1, not 0"):
        memory.commit(conn, "desk", Change([REFUND_2], [unit(2)]), "night 2", 0, now)


def test_versions_never_change(conn: Conn, now: datetime) -> None:
    first_two(conn, now)
    edited = dataclasses.replace(REFUND, content="Refund at once.")
    with pytest.raises(
        Conflict, match="version 1 of memory entry 'e-1' is stored with other content"
    ):
        memory.commit(conn, "desk", Change([edited], [unit(0)]), "night 2", 1, now)


def test_unfit_changes_are_refused(conn: Conn, now: datetime) -> None:
    with pytest.raises(RecordError, match="one vector each: got 0 for 1"):
        memory.commit(conn, "desk", Change([REFUND], []), "k", 0, now)
    foreign = dataclasses.replace(REFUND, scope="bank")
    with pytest.raises(RecordError, match="belongs to 'bank', not 'desk'"):
        memory.commit(conn, "desk", Change([foreign], [unit(0)]), "k", 0, now)
    with pytest.raises(StoreError, match="revision 3: expected 0 to"):
        memory.rollback(conn, "desk", 3, "ann", "", now)


def test_fusion_of_two_rankings(conn: Conn, now: datetime) -> None:
    """Question along axis 1 with the word "refund".

    By vector e-2 (distance 0) is first, e-1 and e-3 (distance 1 each) follow by id. By words only e-1 has "refund".
    e-1: 1/62 + 1/61, e-2: 1/61, e-3: 1/63.
    """
    third = entry("e-3", "greeting", "Say hello.")
    change = Change([REFUND, ADDRESS, third], [unit(0), unit(1), unit(2)])
    memory.commit(conn, "desk", change, "night 1", 0, now)
    found = memory.recall(conn, "desk", Question("a refund please?", unit(1), 3))
    assert [(item.entry, item.vector_rank, item.word_rank) for item in found] == [
        (REFUND, 2, 1),
        (ADDRESS, 1, None),
        (third, 3, None),
    ]
    assert [item.score for item in found] == pytest.approx([1 / 62 + 1 / 61, 1 / 61, 1 / 63])
    assert len(memory.recall(conn, "desk", Question("refund", unit(1), 1))) == 1


def test_recall_sees_its_revision_and_scope_alone(conn: Conn, now: datetime) -> None:
    first_two(conn, now)
    memory.commit(conn, "desk", Change([REFUND_2], [unit(0)]), "night 2", 1, now)
    question = Question("refund of an order", unit(0), 1)
    assert [item.entry for item in memory.recall(conn, "desk", question)] == [REFUND_2]
    assert [item.entry for item in memory.recall(conn, "desk", question, 1)] == [REFUND]
    assert memory.recall(conn, "desk", question, 0) == []
    assert memory.recall(conn, "other", question) == []


@pytest.mark.parametrize(
    "text", ["", "the of and", "a & b | !c <-> (", "x'y:*\0", "http://a/b?x=1&y=2"]
)
def test_any_question_is_legal(conn: Conn, now: datetime, text: str) -> None:
    """Without a usable word the vector ranking decides alone."""
    first_two(conn, now)
    assert memory.recall(conn, "desk", Question(text, unit(1), 1))[0].entry == ADDRESS


def use(trajectory_id, entry, succeeded):
    return trajectory_id, entry.id, entry.version, succeeded


def test_uses_are_counted_per_version(conn: Conn, now: datetime) -> None:
    """Two trajectories, one successful, one noted twice: 2 uses, 1 success; version 2 starts at what it carries."""
    first_two(conn, now)
    memory.note_uses(conn, "desk", [use("t-1", REFUND, True), use("t-1", ADDRESS, True)])
    memory.note_uses(conn, "desk", [use("t-1", REFUND, True)])
    memory.note_uses(conn, "desk", [use("t-2", REFUND, False)])
    refund, address = memory.bank(conn, "desk")
    assert (refund.uses, refund.successes) == (2, 1)
    assert (address.uses, address.successes) == (1, 1)
    following = dataclasses.replace(refund, version=2, content="Other words.")
    memory.commit(conn, "desk", Change([following], [unit(0)]), "night 2", 1, now)
    memory.note_uses(conn, "desk", [use("t-3", following, True)])
    assert memory.bank(conn, "desk")[0] == dataclasses.replace(following, uses=3, successes=2)


def test_a_revision_recalls_the_uses_that_it_knew(conn: Conn, now: datetime) -> None:
    """Noted under revision 1: revision 1 recalls the entry as untried, revision 2 as used once."""
    first_two(conn, now)
    question = Question("refund of an order", unit(0), 1)
    memory.note_uses(conn, "desk", [use("t-1", REFUND, True)])
    assert [item.entry.uses for item in memory.recall(conn, "desk", question, 1)] == [0]
    memory.commit(conn, "desk", Change([], [], removed=[ADDRESS.id]), "night 2", 1, now)
    memory.note_uses(conn, "desk", [use("t-2", REFUND, False)])
    assert [item.entry.uses for item in memory.recall(conn, "desk", question, 1)] == [0]
    (known,) = memory.recall(conn, "desk", question, 2)
    assert (known.entry.uses, known.entry.successes) == (1, 1)
    assert memory.bank(conn, "desk")[0].uses == 2


def test_pages_and_differences_of_revisions(conn: Conn, now: datetime) -> None:
    """Revision 1 holds e-1 and e-2; revision 2 rewrites e-1 and drops e-2; nothing differs from itself."""
    first_two(conn, now)
    change = Change([REFUND_2], [unit(0)], removed=[ADDRESS.id])
    memory.commit(conn, "desk", change, "night 2", 1, now)
    assert memory.size(conn, "desk", 1) == 2
    assert memory.size(conn, "desk", 2) == 1
    assert memory.page(conn, "desk", 1, limit=1, offset=1) == [ADDRESS]
    assert memory.page(conn, "desk", 2) == [REFUND_2]
    assert memory.diff(conn, "desk", 1, 2) == [(REFUND, REFUND_2), (ADDRESS, None)]
    assert memory.diff(conn, "desk", 2, 1) == [(REFUND_2, REFUND), (None, ADDRESS)]
    assert memory.diff(conn, "desk", 0, 1, limit=1) == [(None, REFUND)]
    assert memory.diff(conn, "desk", 2, 2) == []
