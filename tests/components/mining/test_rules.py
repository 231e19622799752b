from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

from components.errors import ConfigError
from components.mining.rules import Rules
from components.plugins import make
from components.records import Feedback, Message, ToolCall, Trajectory
from tests.components.mining.trajectories import (
    asked,
    call,
    episode,
    failed,
    result,
    say,
    solved,
    taken_over,
)

LOOK = call("get_order", {"order_id": "W482"})
CANCEL = call("cancel_order", {"order_id": "W482", "reason": "mistake"})
DONE = say("Order W482 is cancelled.")
OPERATOR = solved(LOOK, CANCEL, DONE)


def mined(trajectory: Trajectory):
    cases = list(Rules().mine([trajectory]))
    assert len(cases) <= 1
    return cases[0] if cases else None


def seen(trajectory: Trajectory) -> tuple[str, int | None, str]:
    case = mined(trajectory)
    assert case is not None
    return case.signature, case.turn, case.fault


def against_operator(*actions: Message) -> tuple[str, int | None, str]:
    return seen(taken_over(solved(*actions), OPERATOR))


def test_wrong_tool() -> None:
    """get_order is made at turn 0; at turn 1 cancel_order is due and refund_order, which nobody wanted, is called."""
    found = against_operator(LOOK, call("refund_order", {"order_id": "W482"}), say("ok"))
    assert found == ("wrong_tool|cancel_order|issued refund_order", 1, "model")


def test_wrong_argument_names_only_what_differs() -> None:
    """order_id differs; reason is equal but for case and blanks."""
    wrong = call("cancel_order", {"order_id": "W48", "reason": " Mistake "})
    assert against_operator(LOOK, wrong, DONE) == (
        "wrong_argument|cancel_order|order_id",
        1,
        "model",
    )


def test_number_as_text_is_the_same_argument() -> None:
    agent = solved(call("pay", {"amount": 5.0, "note": None}), say("Paid 5."))
    person = solved(call("pay", {"amount": "5"}), say("Paid 6."))
    assert seen(taken_over(agent, person))[0] == "wrong_reply|pay|"


def test_long_remarks_are_not_compared() -> None:
    agent = solved(call("note", {"text": "the customer is upset about this"}), say("Done 5."))
    person = solved(call("note", {"text": "an order that never came at all"}), say("Done 7."))
    assert seen(taken_over(agent, person))[0] == "wrong_reply|note|"


def test_early_reply_is_a_missing_step() -> None:
    assert against_operator(LOOK, DONE) == ("missing_step|cancel_order|", 1, "model")


def test_passed_over_step_is_blamed_where_it_was_passed() -> None:
    """cancel_order is made at turn 0 although get_order, due before it, never is."""
    assert against_operator(CANCEL, DONE) == ("missing_step|get_order|", 0, "model")


def test_order_of_independent_calls_does_not_matter() -> None:
    """Both calls are made, swapped; what is left to blame is the reply, which lacks W482."""
    assert against_operator(CANCEL, LOOK, say("Done.")) == ("wrong_reply|cancel_order|", 2, "model")


def test_extra_step_is_blamed_when_nothing_else_deviates() -> None:
    extra = call("get_customer", {"name": "Ann"})
    assert against_operator(extra, LOOK, CANCEL, DONE) == ("extra_step|get_customer|", 0, "model")
    wrong = call("cancel_order", {"order_id": "W1", "reason": "mistake"})
    assert against_operator(extra, LOOK, wrong, DONE) == (
        "wrong_argument|cancel_order|order_id",
        2,
        "model",
    )


def test_repaired_argument_is_blamed_only_when_nothing_else_deviates() -> None:
    typo = call("get_order", {"order_id": "482"})
    assert against_operator(typo, LOOK, CANCEL, DONE) == (
        "wrong_argument|get_order|order_id",
        0,
        "model",
    )
    assert against_operator(typo, LOOK, DONE)[0] == "missing_step|cancel_order|"


def test_no_reply_at_the_end() -> None:
    assert against_operator(LOOK, CANCEL) == ("wrong_reply|cancel_order|no reply", 1, "model")


def test_same_steps_and_same_reply_put_the_verdict_in_doubt() -> None:
    assert against_operator(LOOK, CANCEL, DONE) == (
        "disputed_verdict|cancel_order|",
        None,
        "verifier",
    )


@pytest.mark.parametrize(
    ("action", "finish", "reason"),
    [
        (say("Sure! I would be happy to help you with"), "length", "cut off"),
        (say('get_order {"order_id": "W482"'), "stop", "call written as text"),
        (say(""), "stop", "empty"),
        (replace(say("??"), marks=("unparsable: no call",)), "stop", "no call"),
        (call("get_order", '{"order_id": "W482"} {"a": 1}'), "stop", "extra data"),
        (call("get_order", " "), "stop", "empty arguments"),
    ],
)
def test_unparsable_action(action: Message, finish: str, reason: str) -> None:
    agent = episode((asked(), action), finish_reason=finish)
    person = episode(*OPERATOR, executor="human", start=1)
    found = seen(failed(agent + person))
    assert found == (f"unparsable_action|get_order|{reason}", 0, "model")


def test_operator_starts_where_the_edit_says() -> None:
    """The operator keeps turn 0 and redoes turn 1, so only turn 1 is compared: refund_order instead of cancel_order."""
    agent = episode(*solved(LOOK, call("refund_order", {"order_id": "W482"}), DONE))
    redo = [(agent[1].observation, CANCEL), (result("ok"), DONE)]
    person = episode(*redo, executor="human", start=3)
    expected = ("wrong_tool|cancel_order|issued refund_order", 1, "model")
    assert seen(failed(agent + person)) == expected
    edit = Feedback("user", "edit", turn=1)
    assert seen(failed(agent + person, feedback=(edit,))) == expected


def test_success_after_the_operator_still_counts_for_the_agent() -> None:
    trajectory = taken_over(solved(LOOK, DONE), OPERATOR)
    assert seen(replace(trajectory, outcome=True))[0] == "missing_step|cancel_order|"
    same = taken_over(solved(LOOK, CANCEL, DONE), OPERATOR)
    assert mined(replace(same, outcome=True)) is None


def test_success_and_unknown_outcome_without_signal_give_nothing() -> None:
    turns = episode(*solved(LOOK, CANCEL, DONE))
    assert mined(failed(turns, outcome=True)) is None
    assert mined(failed(turns, outcome=None)) is None
    assert mined(failed([], outcome=None)) is None


@pytest.mark.parametrize(
    ("reason", "detail"),
    [
        ("error: rate limit reached, try again in 6 m (rate_limit_exceeded)", "rate limit"),
        ("error: Provider returned error (400)", "request refused"),
        (
            "error: ModelCallError: the prompt does not fit: 2100 tokens, 2048 at most",
            "context too long",
        ),
        ("error: ModelCallError: connection refused", "connection"),
        ("error: HarnessError: no renderer 7", "harnesserror"),
    ],
)
def test_provider_errors_are_infrastructure(reason: str, detail: str) -> None:
    """Case S03: such a record holds no assistant message and is never the agent's failure."""
    for turns in ([], episode((asked(), say("Hel")))):
        signature, _, fault = seen(failed(turns, outcome=None, stop_reason=reason))
        assert (signature, fault) == (f"infrastructure||{detail}", "infrastructure")


def test_provider_error_mark_without_stop_reason() -> None:
    found = seen(failed([], outcome=None, marks=("provider error: overloaded",)))
    assert found == ("infrastructure||server error", None, "infrastructure")


def test_environment_error_of_the_run() -> None:
    found = seen(
        failed(episode((asked(), LOOK)), stop_reason="error: EnvError: the shop timed out")
    )
    assert found == ("tool_failure|get_order|timeout", 0, "environment")


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ('{"error": "503 Service Unavailable"}', "server error"),
        ("Error: request timed out after 30 s", "timeout"),
        ("HTTP 502", "server error"),
        ('{"status": "error", "message": "connection reset by peer"}', "connection"),
    ],
)
def test_server_like_tool_errors_are_the_environments_fault(text: str, detail: str) -> None:
    if text == "HTTP 502":
        text = "HTTP error 502"
    turns = episode((asked(), LOOK), (result(text), say("Sorry, try later.")))
    assert seen(failed(turns)) == (f"tool_failure|get_order|{detail}", 0, "environment")


def test_server_error_that_went_away_is_no_signal() -> None:
    turns = episode((asked(), LOOK), (result("Error: timeout"), LOOK), (result("{}"), DONE))
    assert seen(failed(turns))[0] == "wrong_outcome|get_order|"


def test_text_about_an_error_is_not_an_error() -> None:
    page = '{"page": "What does error 503 mean? Timeouts explained."}'
    turns = episode((asked(), LOOK), (result(page), DONE))
    assert mined(failed(turns, outcome=None)) is None


def test_three_objects_in_one_arguments_text() -> None:
    """Case S01: a second object starts right after the first; the call is listed as malformed, not split or emptied."""
    glued = call("read", '{"note":"x"}{"path":"a.ts"}{"path":"b.ts"}')
    turns = episode((asked("Look at both files"), glued))
    tail = result("error: invalid arguments")
    case = mined(failed(turns, outcome=None, tail=tail))
    assert case is not None
    assert (case.signature, case.turn, case.fault) == ("malformed_call|read|extra data", 0, "model")
    assert case.evidence[0].quote == 'read {"note":"x"}{"path":"a.ts"}{"path":"b.ts"}'


def test_cut_arguments_are_told_from_wrong_ones() -> None:
    """Case S02: with finish reason `length` the call was cut off; the same call without it is malformed."""
    calls = (ToolCall("b1", "get_weather", '{"city": "Par'), ToolCall("b4", "ping", "{}"))
    action = Message("assistant", "", calls)
    cut = episode((asked("Weather in Paris?"), action), finish_reason="length")
    assert seen(failed(cut, outcome=None)) == ("cut_off|get_weather|token limit", 0, "unclear")
    whole = episode((asked("Weather in Paris?"), action), finish_reason="tool_calls")
    expected = ("malformed_call|get_weather|unterminated string starting at", 0, "model")
    assert seen(failed(whole, outcome=None)) == expected
    legal = episode((asked(), Message("assistant", "", calls[1:])), finish_reason="tool_calls")
    assert mined(failed(legal, outcome=None)) is None


def test_one_of_two_parallel_calls_unanswered() -> None:
    """Case S05: the answer carries the second call's id, so the first, Oslo, has no result, whatever the positions."""
    calls = (
        ToolCall("e1", "get_weather", '{"city":"Oslo"}'),
        ToolCall("e2", "get_weather", '{"city":"Rome"}'),
    )
    turns = episode(
        (asked("Compare Oslo and Rome."), Message("assistant", None, calls)),
        (result("22 C", "e2"), say("Rome is 22 C.")),
    )
    case = mined(failed(turns, outcome=None))
    assert case is not None
    assert case.signature == "unanswered_call|get_weather|"
    assert case.fault == "infrastructure"
    assert "Oslo" in case.evidence[0].quote


def test_call_at_the_end_of_the_log_is_not_unanswered() -> None:
    assert mined(failed(episode((asked(), LOOK)), outcome=None)) is None


def test_answers_without_ids_are_paired_by_place() -> None:
    turns = episode((asked(), LOOK), (result("{}", None), DONE))
    assert mined(failed(turns, outcome=None)) is None


def test_loop_after_an_error() -> None:
    """Turns 0, 1, 2 hold the same call, each refused; the first repetition is turn 1."""
    refused = result('{"error": "no such order"}')
    turns = episode((asked(), LOOK), (refused, LOOK), (refused, LOOK), (refused, say("Hm.")))
    assert seen(failed(turns)) == ("repeated_call|get_order|after an error", 1, "model")
    assert seen(failed(turns[:2] + episode((refused, say("Hm.")), start=2)))[0] == (
        "tool_error|get_order|no such order"
    )


def test_loop_with_the_same_answer() -> None:
    answer = result('{"status": "packed"}')
    turns = episode((asked(), LOOK), (answer, LOOK), (answer, LOOK), (answer, say("Hm.")))
    assert seen(failed(turns)) == ("repeated_call|get_order|same answer", 1, "model")


def test_polling_with_news_is_no_loop() -> None:
    turns = episode((asked(), LOOK), (result("1"), LOOK), (result("2"), LOOK), (result("3"), DONE))
    assert mined(failed(turns, outcome=None)) is None


def test_refused_call_without_recovery() -> None:
    turns = episode((asked(), LOOK), (result("Error: order W482 not found"), say("Sorry.")))
    assert seen(failed(turns)) == ("tool_error|get_order|order <id> not found", 0, "model")


def test_recovery_by_another_tool_counts_while_the_outcome_is_unknown() -> None:
    other = call("find_order", {"name": "Ann"})
    turns = episode((asked(), LOOK), (result("Error: not found"), other), (result("{}"), DONE))
    assert mined(failed(turns, outcome=None)) is None
    assert seen(failed(turns, outcome=False))[0] == "tool_error|get_order|not found"


def test_violation_recorded_by_the_environment() -> None:
    broken = Feedback("environment", "violation", 1.0, turn=1, name="refund without permission")
    turns = episode(*solved(LOOK, call("refund_order", {"order_id": "W482"}), DONE))
    found = seen(failed(turns, feedback=(broken,)))
    assert found == ("policy_violation|refund_order|refund without permission", 1, "model")


def test_edit_without_corrected_turns() -> None:
    """`3.14*r*2` to `3.14*r**2` is one insertion over nine characters: d = 1/9, refined."""
    turns = episode((asked("area"), say("3.14*r*2")))
    edit = Feedback("user", "edit", turn=0, before="3.14*r*2", after="3.14*r**2")
    assert seen(failed(turns, outcome=None, feedback=(edit,))) == ("edited||refined", 0, "model")
    kept = replace(edit, after=edit.before)
    assert mined(failed(turns, outcome=None, feedback=(kept,))) is None


def test_low_rating_and_refusal() -> None:
    turns = episode((asked(), say("No.")))
    low = Feedback("user", "rating", 0.0, turn=0)
    assert seen(failed(turns, outcome=None, feedback=(low,))) == (
        "rejected||low rating by user",
        0,
        "unclear",
    )
    assert mined(failed(turns, outcome=None, feedback=(replace(low, score=1.0),))) is None
    assert mined(failed(turns, outcome=None, feedback=(replace(low, score=None),))) is None
    refused = Feedback("user", "reject", turn=0)
    assert seen(failed(turns, outcome=None, feedback=(refused,)))[0] == "rejected||by user"


def test_stopped_at_the_turn_limit() -> None:
    turns = episode(*solved(LOOK, CANCEL))
    found = seen(failed(turns, stop_reason="max_turns"))
    assert found == ("cut_off|cancel_order|turn limit", 1, "unclear")


def test_judges_that_disagree() -> None:
    judged = (Feedback("verifier", "outcome", 0.0), Feedback("user", "outcome", 1.0))
    turns = episode(*solved(LOOK, DONE))
    found = seen(failed(turns, feedback=judged))
    assert found == ("disputed_outcome|get_order|verifier against user", None, "unclear")


def test_failure_without_signal_has_no_turn() -> None:
    turns = episode(*solved(LOOK, DONE))
    assert seen(failed(turns, outcome_source="verifier")) == (
        "wrong_outcome|get_order|",
        None,
        "model",
    )
    assert seen(failed(turns, outcome_source="judge"))[2] == "unclear"
    assert seen(failed([], outcome_source="verifier")) == ("wrong_outcome||", None, "unclear")


def test_same_trajectory_same_case() -> None:
    trajectory = taken_over(solved(LOOK, DONE), OPERATOR)
    first, second = mined(trajectory), mined(trajectory)
    assert first == second
    other = mined(replace(trajectory, id="t2"))
    assert first is not None
    assert other is not None
    assert first.id != other.id
    assert first.lineage.parents == ("t1",)


def test_summaries_carry_no_particulars() -> None:
    turns = episode((asked(), LOOK), (result("Error: order W482 of Ann Lee not found"), say("?")))
    case = mined(failed(turns))
    assert case is not None
    assert "W482" not in case.summary
    assert case.summary.startswith("get_order refused the agent's call")


def test_options_are_checked() -> None:
    assert make("mining", "rules", {"repeats": 2}) == Rules(repeats=2)
    with pytest.raises(ConfigError, match="at least 2"):
        make("mining", "rules", {"repeats": 1})


def test_planted_faults_are_found_by_class() -> None:
    """Six tools times seven planted faults times two ids, and 24 successes.

    Each plant changes one thing in a solved conversation, so its class is known by construction; precision and recall
    must both be 1 for every class, and the successes must give nothing.
    """
    tools = ["track", "refund", "exchange", "send_voucher", "change_address", "escalate"]
    planted: dict[str, str] = {}
    trajectories = []
    for tool, number in product(tools, (17, 93)):
        look = call("get_order", {"order_id": f"W{number}"})
        act = call(tool, {"order_id": f"W{number}", "kind": "full"})
        done = say(f"Done: W{number}.")
        person = solved(look, act, done)
        agents = {
            f"wrong_tool|{tool}": [look, call("close_case", {"order_id": f"W{number}"}), done],
            f"wrong_argument|{tool}": [look, call(tool, {"order_id": "W1", "kind": "full"}), done],
            f"unparsable_action|{tool}": [look, say(f'{tool} {{"order_id": ')],
            f"missing_step|{tool}": [look, done],
            f"extra_step|{tool}": [look, act, call(tool, {"order_id": "W5"}), done],
            f"wrong_reply|{tool}": [look, act, say("I cannot say.")],
            "missing_step|get_order": [act, done],
        }
        for label, actions in agents.items():
            id = f"{label}-{tool}-{number}"
            planted[id] = label
            trajectories.append(taken_over(solved(*actions), person, id))
        for copy in range(2):
            turns = episode(*solved(look, act, done))
            trajectories.append(failed(turns, f"good-{tool}-{number}-{copy}", outcome=True))
    found = {c.trajectory_id: f"{c.kind}|{c.tool}" for c in Rules().mine(trajectories)}
    wrong = Counter((planted[id], found.get(id)) for id in planted if found.get(id) != planted[id])
    assert not wrong
    assert found.keys() == planted.keys()
