"""Slots: who may go on where, whose prefix is shared, who makes room."""

from components.rollout._slots import Slots


def filled(slots: Slots, slot: int, tokens: list[int], idle: bool = True) -> None:
    """A slot that has computed these tokens."""
    slots.occupy(slot, tokens, 0)
    slots.advance(slot, len(tokens))
    if idle:
        slots.release(slot)


def test_a_conversation_goes_on_in_its_own_slot() -> None:
    slots = Slots(3, 10)
    filled(slots, 0, [1, 2, 9])
    filled(slots, 1, [1, 2, 3])
    assert slots.home([1, 2, 3, 4, 5]) == 1
    assert slots.home([1, 2, 3]) == 1
    assert slots.home([1, 2]) is None, "slot 1 holds more than the prompt"
    assert slots.home([7, 8]) is None


def test_a_busy_slot_is_nobody_elses_home() -> None:
    slots = Slots(2, 10)
    filled(slots, 0, [1, 2, 3], idle=False)
    assert slots.home([1, 2, 3, 4]) is None
    assert slots.match([1, 2, 3, 4])[:2] == (0, 3)


def test_a_short_home_gives_way_to_a_longer_prefix_elsewhere() -> None:
    slots = Slots(2, 10)
    filled(slots, 0, [1])
    filled(slots, 1, [1, 2, 3, 9], idle=False)
    assert slots.home([1, 2, 3, 4]) is None
    assert slots.match([1, 2, 3, 4]).count == 3


def test_one_token_of_a_prompt_is_always_left_to_compute() -> None:
    slots = Slots(1, 10)
    filled(slots, 0, [1, 2, 3])
    assert slots.match([1, 2, 3]).count == 2


def test_tokens_on_their_way_are_promised_not_computed() -> None:
    slots = Slots(2, 10)
    slots.occupy(0, [1, 2, 3, 4], 0)
    slots.advance(0, 1)
    assert slots.match([1, 2, 3, 5]) == (0, 1, 3)


def test_guests_get_empty_slots_first_then_the_longest_unused() -> None:
    slots = Slots(3, 10)
    filled(slots, 0, [1])
    filled(slots, 1, [2])
    assert slots.guest() == 2
    filled(slots, 2, [3])
    assert slots.guest() == 0
    filled(slots, 0, [4], idle=False)
    assert slots.guest() == 1
    filled(slots, 1, [5], idle=False)
    filled(slots, 2, [6], idle=False)
    assert not slots.has_idle


def test_what_was_sampled_last_is_not_remembered_as_computed() -> None:
    slots = Slots(1, 10)
    filled(slots, 0, [1, 2], idle=False)
    slots.append(0, 3)
    assert (slots.pending(0), slots.next_tokens(0, 1)) == (1, [3])
    slots.release(0)
    assert slots.pending(0) == 0
    assert slots.match([1, 2, 3, 4]).count == 2


def test_a_slot_released_without_keeping_is_empty() -> None:
    slots = Slots(1, 10)
    filled(slots, 0, [1, 2], idle=False)
    slots.release(0, keep=False)
    assert slots.match([1, 2, 3]).count == 0


def test_what_slots_have_in_common_is_computed_in_all_and_long_enough() -> None:
    """40 equal tokens, of which slot 2 has computed 35; slot 3 differs at the 33rd, slot 4 at the 20th."""
    slots = Slots(5, 64)
    base = list(range(100, 140))
    for slot, tokens in enumerate(
        [[*base, 1], [*base, 2, 3], base, base[:32] + [9] * 8, base[:19] + [9] * 21]
    ):
        slots.occupy(slot, tokens, computed=35 if slot == 2 else len(tokens))
    assert slots.common([0, 1]) == 40
    assert slots.common([0, 2, 1]) == 35
    assert slots.common([1, 3]) == 32
    assert slots.common([0, 4]) == 0, "19 tokens are not worth it"
    assert slots.common([0]) == 0
    assert slots.common([]) == 0


def test_equal_sequences_have_in_common_what_both_have_computed() -> None:
    slots = Slots(2, 64)
    slots.occupy(0, list(range(1, 51)), computed=49)
    slots.occupy(1, list(range(1, 51)), computed=48)
    assert slots.common([0, 1]) == 48
