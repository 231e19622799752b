"""Trajectories come back exactly, tokens included."""

import dataclasses

import numpy as np
import pytest

from components.errors import Misaligned, RecordError, StoreError
from components.records import Feedback, Message, Turn
from store import trajectories
from store.db import Conn
from store.files import FileStore
from store.trajectories import TrajectoryFilter
from tests.store.records import TOOL, sampled_turn, trajectory

pytestmark = pytest.mark.postgres


def test_round_trip(conn: Conn, files: FileStore) -> None:
    """Sampled, partly sampled, unsampled and empty ones in one batch, in the order asked for.

    The second prompt repeats the first prompt and completion, the third does not; a completion may be empty, which is
    not the same as none.
    """
    turns = (
        sampled_turn(0, (1, 2, 3), (4, 5)),
        sampled_turn(1, (1, 2, 3, 4, 5, 6), (7,)),
        sampled_turn(2, (9, 9), ()),
        Turn(3, (), Message("assistant", "by hand"), executor="human"),
    )
    batch = [
        trajectory("t-1", turns),
        trajectory("t-2", (Turn(0, (Message("user", "hi"),), Message("assistant", "ho")),)),
        trajectory("t-3", (dataclasses.replace(turns[1], index=0),)),
        trajectory("t-4"),
    ]
    assert trajectories.put(conn, files, batch, "2026-01-31", "rollout") == 4
    assert trajectories.get(conn, files, ["t-3", "t-1", "t-4", "t-2"]) == [
        batch[2],
        batch[0],
        batch[3],
        batch[1],
    ]
    assert trajectories.get(conn, files, []) == []


def test_keys_of_tools_keep_their_order(conn: Conn, files: FileStore) -> None:
    """`order` stands before `id` in the tool, which a prompt shows; sorted keys would turn them round."""
    trajectories.put(conn, files, [trajectory()], "2026-01-31", "production")
    (found,) = trajectories.get(conn, files, ["t-1"])
    parameters = found.tools[0]["function"]["parameters"]
    assert list(parameters["properties"]) == ["order", "id"]
    assert list(found.tools[0]) == list(TOOL)


def test_same_content_changes_nothing_and_other_content_is_a_revision(
    conn: Conn, files: FileStore
) -> None:
    first = trajectory("t-1", (sampled_turn(0, (1,), (2, 3)),))
    assert trajectories.put(conn, files, [first], "2026-01-30", "rollout") == 1
    assert trajectories.put(conn, files, [first, first], "2026-01-31", "rollout") == 0
    other = dataclasses.replace(first, turns=(sampled_turn(0, (1,), (2, 4)),))
    assert trajectories.put(conn, files, [other], "2026-01-31", "rollout") == 1
    (row,) = trajectories.page(conn, TrajectoryFilter())
    assert (row.revision, row.night) == (2, "2026-01-30")
    assert trajectories.get(conn, files, ["t-1"]) == [other]


def test_changed_trajectory_belongs_to_both_nights(conn: Conn, files: FileStore) -> None:
    """A conversation that went on the next day is work for the next night too."""
    batch = [trajectory("t-1"), trajectory("t-2")]
    trajectories.put(conn, files, batch, "2026-01-30", "production")
    grown = dataclasses.replace(batch[1], outcome=True)
    trajectories.put(conn, files, [grown, trajectory("t-3")], "2026-01-31", "production")
    assert trajectories.ids_of_night(conn, "desk", "2026-01-30", "production") == ["t-1", "t-2"]
    assert trajectories.ids_of_night(conn, "desk", "2026-01-31", "production") == ["t-2", "t-3"]
    assert trajectories.ids_of_night(conn, "desk", "2026-01-31", "rollout") == []


def test_what_cannot_be_stored_is_replaced_and_marked(conn: Conn, files: FileStore) -> None:
    turn = Turn(0, (Message("tool", "head\0tail"),), Message("assistant", "cut \ud83d"))
    broken = dataclasses.replace(
        trajectory("t-1", (turn,)), feedback=(Feedback("user", "rating", float("nan")),)
    )
    assert trajectories.put(conn, files, [broken], "2026-01-31", "production") == 1
    (found,) = trajectories.get(conn, files, ["t-1"])
    assert found.marks == ("altered",)
    assert found.turns[0].observation[0].content == "head\ufffdtail"
    assert found.turns[0].action.content == "cut \ufffd"
    assert found.feedback[0].score is None
    assert trajectories.put(conn, files, [broken, found], "2026-01-31", "production") == 0


def test_unfit_records_are_refused(conn: Conn, files: FileStore) -> None:
    with pytest.raises(RecordError, match="1 to 512 characters, got 600"):
        trajectories.put(conn, files, [trajectory("x" * 600)], "2026-01-31", "production")
    turn = dataclasses.replace(sampled_turn(0, (1,), (2, 3)), logprobs=(-0.5,))
    with pytest.raises(Misaligned, match="got 1, expected 2"):
        trajectories.put(conn, files, [trajectory("t-1", (turn,))], "2026-01-31", "rollout")


def test_missing_trajectory_and_missing_file_are_named(conn: Conn, files: FileStore) -> None:
    with pytest.raises(StoreError, match="1 of 1 trajectories are not in the store, first 'no'"):
        trajectories.get(conn, files, ["no"])
    one = trajectory("t-1", (sampled_turn(0, (1,), (2,)),))
    trajectories.put(conn, files, [one], "2026-01-31", "rollout")
    (file,) = [path for path in files.root.rglob("objects/*/*") if path.is_file()]
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(StoreError, match="damaged"):
        trajectories.get(conn, files, ["t-1"])


def test_a_page_shows_a_trajectory_without_its_tokens(conn: Conn, files: FileStore) -> None:
    trajectories.put(
        conn, files, [trajectory("t-1", (sampled_turn(0, (1,), (2,)),))], "2026-01-31", "rollout"
    )
    found = trajectories.shown(conn, "t-1")
    assert found is not None
    (turn,) = found.turns
    assert (turn.action.tool_calls[0].name, turn.completion_ids) == ("refund", None)
    assert trajectories.shown(conn, "t-2") is None


def test_pages_and_counts(conn: Conn, files: FileStore) -> None:
    """Five trajectories, three of them failed; pages of two."""
    batch = [
        dataclasses.replace(trajectory(f"t-{number}"), outcome=number % 2 == 0 or None)
        for number in range(4)
    ]
    trajectories.put(conn, files, batch, "2026-01-30", "production")
    trajectories.put(conn, files, [trajectory("t-9")], "2026-01-31", "production")
    everything = TrajectoryFilter(agent="desk")
    assert trajectories.count(conn, everything) == 5
    first = trajectories.page(conn, everything, limit=2)
    second = trajectories.page(conn, everything, limit=2, offset=2)
    assert [row.id for row in first + second] == ["t-9", "t-0", "t-1", "t-2"]
    assert [row.id for row in trajectories.page(conn, TrajectoryFilter(outcome=False))] == ["t-9"]
    assert trajectories.count(conn, TrajectoryFilter(outcome=True, night="2026-01-30")) == 2
    assert trajectories.count(conn, TrajectoryFilter(agent="other")) == 0


def test_prompts_that_repeat_take_linear_space(conn: Conn, files: FileStore) -> None:
    """Fifty turns of 100 tokens each: 100 + 50 * 100 different prompt tokens, not 50 * 51 / 2 * 100."""
    turns = []
    prompt = tuple(range(100))
    for index in range(50):
        completion = tuple(range(50))
        turns.append(sampled_turn(index, prompt, completion))
        prompt += completion + tuple(range(50))
    whole = trajectory("t-1", tuple(turns))
    trajectories.put(conn, files, [whole], "2026-01-31", "rollout")
    (file,) = [path for path in files.root.rglob("objects/*/*") if path.is_file()]
    with np.load(file) as arrays:
        assert len(arrays["prompt_ids"]) == 100 + 49 * 50
    assert trajectories.get(conn, files, ["t-1"]) == [whole]
