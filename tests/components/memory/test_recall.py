import pytest

from components.memory.recall import is_useful, memory_block, utility
from components.records import Lineage, MemoryEntry

LINEAGE = Lineage((), "memory/lessons", "1", "rule", "")


def entry(id: str, content: str = "do this", uses: int = 0, successes: int = 0) -> MemoryEntry:
    return MemoryEntry(
        id, 1, "lesson", f"ask {id} | other", content, ("t",), "desk", LINEAGE, uses, successes
    )


@pytest.mark.parametrize(
    ("uses", "successes", "value", "useful"),
    [(0, 0, 0.5, True), (2, 0, 0.25, True), (3, 0, 0.2, False), (3, 1, 0.4, True)],
)
def test_utility(uses: int, successes: int, value: float, useful: bool) -> None:
    """(successes + 1) / (uses + 2); pruned only after three uses and below 0.3."""
    tried = entry("a", uses=uses, successes=successes)
    assert utility(tried) == pytest.approx(value)
    assert is_useful(tried) is useful


def test_block_shows_first_cue_and_content() -> None:
    block = memory_block([entry("a", "get(x)\nOr: put(x)")], 500)
    assert block.text == 'Lessons:\n- "ask a": get(x); or: put(x)'
    assert block.entry_ids == ("a",)


def test_budget_counts_every_character_and_keeps_entries_whole() -> None:
    """`Lessons:` 8, `\\n- "ask a": ` + 30 letters = 12 + 30 = 42, and with 4 letters 16: 8 + 16 = 24 fits, 8 + 42 does not."""
    entries = [entry("a", "x" * 30), entry("b", "yyyy")]
    block = memory_block(entries, 24)
    assert block.entry_ids == ("b",)
    assert len(block.text) == 24
    assert memory_block(entries, 23).entry_ids == ()
    assert len(memory_block(entries, 66).text) == 66


def test_nothing_recalled_changes_nothing() -> None:
    assert memory_block([], 500) == ("", ())
    assert memory_block([entry("a", uses=3)], 500) == ("", ())
    assert memory_block([entry("a")], 0) == ("", ())


def test_equal_contents_appear_once() -> None:
    assert memory_block([entry("a"), entry("b")], 500).entry_ids == ("a",)
