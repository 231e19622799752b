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
    found = slots.match([1, 2, 3, 4])
    assert (found.slot, found.count) == (0, 3)


def test_of_two_homes_the_one_that_holds_more_is_taken() -> None:
    slots = Slots(3, 10)
    filled(slots, 0, [1])
    filled(slots, 1, [1, 2])
    filled(slots, 2, [1, 2, 3, 9], idle=False)
    assert slots.home([1, 2, 3, 4]) == 1
    found = slots.match([1, 2, 3, 4])
    assert (found.slot, found.count) == (2, 3)
    assert found.held_S.tolist() == [1, 2, 3], "token 3 is all that slot 1 lacks"


def test_one_token_of_a_prompt_is_always_left_to_compute() -> None:
    slots = Slots(1, 10)
    filled(slots, 0, [1, 2, 3])
    assert slots.match([1, 2, 3]).count == 2


def test_tokens_on_their_way_are_promised_not_computed() -> None:
    slots = Slots(2, 10)
    slots.occupy(0, [1, 2, 3, 4], 0)
    slots.advance(0, 1)
    found = slots.match([1, 2, 3, 5])
    assert (found.slot, found.count, found.promised) == (0, 1, 3)


def test_sixteen_tokens_on_their_way_are_worth_a_wait() -> None:
    slots = Slots(2, 64)
    slots.occupy(0, list(range(1, 41)), 20)
    assert slots.match([*range(1, 37), 99]).is_worth_waiting, "36 promised, 20 computed"
    assert not slots.match([*range(1, 36), 99]).is_worth_waiting


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
    assert slots.guest() is None


def test_a_reserved_slot_takes_no_guest() -> None:
    slots = Slots(2, 10)
    assert slots.guest({0}) == 1
    assert slots.guest({0, 1}) is None


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
    assert slots.shared_prefix([0, 1]) == 40
    assert slots.shared_prefix([0, 2, 1]) == 35
    assert slots.shared_prefix([1, 3]) == 32
    assert slots.shared_prefix([0, 4]) == 0, "19 tokens are not worth it"
    assert slots.shared_prefix([0]) == 0
    assert slots.shared_prefix([]) == 0


def test_equal_sequences_have_in_common_what_both_have_computed() -> None:
    slots = Slots(2, 64)
    slots.occupy(0, list(range(1, 51)), computed=49)
    slots.occupy(1, list(range(1, 51)), computed=48)
    assert slots.shared_prefix([0, 1]) == 48


def running(num_slots: int, *busy: int) -> Slots:
    slots = Slots(num_slots, 10)
    for slot in busy:
        filled(slots, slot, [slot], idle=False)
    return slots


def test_running_slots_are_brought_together_once_eight_idle_between() -> None:
    """Running: 0, 2 and 10, so 8 of the first 11 slots idle; with 0, 2 and 9 only 7 of 10 do."""
    slots = running(12, 0, 2, 10)
    assert slots.compaction() == [(10, 1)]
    slots.swap(10, 1)
    assert slots.compaction() == []
    assert running(12, 0, 2, 9).compaction() == []
    assert running(12).compaction() == []


def test_idle_slots_outside_the_running_ones_cost_nothing_and_nobody_moves() -> None:
    assert running(64, *range(32, 64)).compaction() == []
    assert running(64, 40).compaction() == []
    assert running(64, 5, 7, 15, 20).compaction() == [(15, 6), (20, 8)]


def test_an_exchange_keeps_both_sequences_and_names_what_differs() -> None:
    """Both begin with 1, 2; one has computed five tokens, the idle other three: positions 2 to 4 differ."""
    slots = Slots(3, 10)
    filled(slots, 2, [1, 2, 3, 4, 5], idle=False)
    slots.append(2, 6)
    filled(slots, 0, [1, 2, 9])
    assert slots.swap(2, 0) == (2, 5)
    assert (slots.pending(0), slots.next_tokens(0, 1), slots.computed(0)) == (1, [6], 5)
    assert slots.home([1, 2, 9, 7]) == 2, "what idled is kept"
    assert slots.guest() == 1


def test_an_exchange_with_an_empty_slot_moves_everything_computed() -> None:
    slots = Slots(2, 10)
    filled(slots, 1, [0, 0, 3], idle=False)
    assert slots.swap(1, 0) == (0, 3), "tokens of an empty slot are zeros, and none is computed"
