"""The program editor: real edits of real code, valid and runnable."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from components.curation._editor import (
    Function,
    Step,
    concerns,
    difference,
    insert,
    operators_of,
)
from components.curation._sandbox import Limits
from components.curation.apply import apply_strategy
from components.curation.rules import EDITS, Rules
from components.curation.strategy_zero import strategy_zero
from components.errors import ConfigError
from components.plugins import make
from components.records import Example, FailureCase, Review
from components.serial import digest
from tests.components.curation.conversations import (
    call,
    case_of,
    corrected,
    result,
    say,
    success,
    turns,
)

ONCE = Limits(num_runs=1, cpu_s=20)


def wrong_tool_cases(num: int = 3) -> list[FailureCase]:
    return [case_of(corrected(f"t{number}", f"Cancel O{number}.")) for number in range(num)]


def test_effectiveness_adds_operators_aimed_at_the_failure() -> None:
    parent = strategy_zero()
    child = Rules().rewrite(parent, wrong_tool_cases())
    assert child is not None
    assert (child.stage, child.parent_id, child.id) == (
        "effectiveness",
        parent.id,
        digest(child.source),
    )
    assert child.motivating_cases == ("case-t0", "case-t1", "case-t2")
    assert child.lineage.engine == "rule"
    added = Counter(operators_of(child.source)) - Counter(operators_of(parent.source))
    assert added == {"segment_around": 1, "reweight": 1}
    diff = difference(parent.source, child.source)
    assert "+def segment_around(plan, test, after):" in diff
    assert not any(
        line.startswith("-") and not line.startswith("---") for line in diff.splitlines()
    )


def test_the_rewritten_strategy_changes_what_is_trained_on() -> None:
    """The case blames turn 0, so the decision is the person's first action: the segment ends one action later.

    Whole correction and segment weigh 2; the success, which no failure concerns, stays at 1.
    """
    child = Rules().rewrite(strategy_zero(), wrong_tool_cases())
    assert child is not None
    records = [corrected(), success()]
    bundle = apply_strategy(child, records, [case_of(corrected())], limits=ONCE).bundle

    def seen(example: Example) -> tuple[str, tuple[int, ...], float]:
        return (example.kind, example.targets, example.weight)

    assert [seen(example) for example in bundle.examples] == [
        ("sft", (2, 4, 6), 2.0),
        ("sft", (2, 4), 2.0),
        ("preference", (2,), 2.0),
        ("sft", (2, 4), 1.0),
    ]


def test_the_segment_follows_the_blamed_turn() -> None:
    """The case blames turn 1: the decision is the person's second action, at message 4, the next at 6."""
    child = Rules().rewrite(strategy_zero(), wrong_tool_cases())
    assert child is not None
    bundle = apply_strategy(
        child, [corrected()], [case_of(corrected(), turn=1)], limits=ONCE
    ).bundle
    assert (4, 6) in [example.targets for example in bundle.examples]


def test_efficiency_follows_and_prunes_last() -> None:
    """Two customers with equal target actions: one whole correction and one segment stay."""
    first = Rules().rewrite(strategy_zero(), wrong_tool_cases())
    assert first is not None
    second = Rules().rewrite(first, [])
    assert second is not None
    assert (second.stage, second.parent_id) == ("efficiency", first.id)
    assert operators_of(second.source)[-3:] == ("dedupe", "truncate_observation", "drop_if")
    records = [corrected("a", "Cancel O1."), corrected("b", "Please cancel O1.")]
    cases = [case_of(item) for item in records]
    before = apply_strategy(first, records, cases, limits=ONCE).bundle
    after = apply_strategy(second, records, cases, limits=ONCE).bundle
    assert [len(bundle.examples) for bundle in (before, after)] == [6, 3]
    assert ("b", "the same as another example") in [
        (d.trajectory_id, d.reason) for d in after.dropped
    ]


def test_pruning_cuts_long_results_and_long_routine() -> None:
    """Five long successes without a case: the mode `success` keeps three. Results over 400 characters are cut."""
    child = Rules().rewrite(replace(strategy_zero(), stage="effectiveness"), [])
    assert child is not None
    records = []
    for number in range(5):
        steps = [
            ((result("x" * 500, f"c{place - 1}"),), call(f"look{number}", "{}", f"c{place}"))
            for place in range(1, 9)
        ]
        opening = success().turns[0].observation
        own = turns(
            (opening, call("look", "{}", "c0")),
            *steps,
            ((result("end", "c8"),), say(f"Done {number}.")),
        )
        records.append(replace(success(f"long{number}"), turns=own))
    bundle = apply_strategy(child, records, [], limits=ONCE).bundle
    assert len(bundle.examples) == 3
    assert max(len(m.text) for example in bundle.examples for m in example.messages) == 400
    assert {item.reason for item in bundle.dropped} == {"long and routine"}


def test_a_second_round_aims_at_new_failures() -> None:
    """After efficiency comes effectiveness again; a failure that was aimed at before gives no second edit."""
    first = Rules().rewrite(strategy_zero(), wrong_tool_cases())
    assert first is not None
    second = Rules().rewrite(first, [])
    assert second is not None
    assert Rules().rewrite(second, wrong_tool_cases()) is None
    other = [replace(case, signature="wrong_argument|get_order|id") for case in wrong_tool_cases()]
    third = Rules().rewrite(second, other)
    assert third is not None
    assert third.stage == "effectiveness"
    aimed = operators_of(third.source).count("reweight") - operators_of(
        strategy_zero().source
    ).count("reweight")
    assert aimed == 2


def test_nothing_applies() -> None:
    """No case, one case only, a fault that is not the model's, a dismissed case, an unknown kind, a foreign source."""
    parent, (one, two, _) = strategy_zero(), wrong_tool_cases()
    dismissed = Review("dismissed", "ann", datetime(2024, 5, 1, tzinfo=UTC))
    for cases in (
        [],
        [one],
        [replace(case, fault="infrastructure") for case in (one, two)],
        [replace(case, review=dismissed) for case in (one, two)],
        [replace(case, signature="sunspots||") for case in (one, two)],
    ):
        assert Rules().rewrite(parent, cases) is None
    foreign = replace(parent, source="def curate(corpus, ctx):\n    return {}\n")
    assert Rules().rewrite(foreign, [one, two]) is None


def test_the_most_frequent_failures_come_first() -> None:
    """Three of one kind, two of another, and room for one."""
    rare = [replace(case, signature="wrong_reply||") for case in wrong_tool_cases(2)]
    child = Rules(num_failures=1).rewrite(strategy_zero(), [*rare, *wrong_tool_cases(3)])
    assert child is not None
    assert "concerns_wrong_tool" in child.source
    assert "concerns_wrong_reply" not in child.source


@pytest.mark.parametrize("kind", sorted(EDITS))
def test_every_row_of_the_table_gives_a_strategy_that_runs(kind: str) -> None:
    cases = [replace(case, signature=f"{kind}|cancel_order|") for case in wrong_tool_cases(2)]
    child = Rules().rewrite(strategy_zero(), cases)
    assert child is not None
    records = [corrected("t0", "Cancel O0."), corrected("t1", "Cancel O1.")]
    curated = apply_strategy(child, records, cases, limits=ONCE)
    assert curated.rejected == ()
    weights = [example.weight for example in curated.bundle.examples if example.kind == "sft"]
    assert 2.0 in weights


def test_text_from_logs_cannot_become_code() -> None:
    """A tool name full of quotes, line ends and code ends up as one literal; the strategy lints and runs."""
    tool = '"""\n\')\nimport os\nos.system("x") # {item}\ud800'
    cases = [replace(case, signature=f"wrong_tool|{tool}|") for case in wrong_tool_cases(2)]
    child = Rules().rewrite(strategy_zero(), cases)
    assert child is not None
    assert "\nimport os" not in child.source
    curated = apply_strategy(child, [corrected("t0")], cases[:1], limits=ONCE)
    assert [e.weight for e in curated.bundle.examples if e.kind == "sft"] == [2.0, 2.0]


def test_comments_and_own_code_of_a_strategy_survive() -> None:
    source = strategy_zero().source.replace(
        "    practise(plan)\n", "    # Ours.\n    practise(plan)\n    plan['rl'] = []\n"
    )
    edited = insert(source, [Step("reweight", (concerns("loop", None), 2.0))], before="practise")
    assert edited is not None
    assert "    # Ours.\n    reweight(plan, concerns_loop_" in edited
    assert "plan['rl'] = []" in edited


@pytest.mark.parametrize(
    ("operator", "arguments", "message"),
    [
        ("reweigh", (), "no operator named 'reweigh'"),
        ("reweight", (Function("is_correction"),), r"takes \(Function, float\), got \(Function\)"),
        ("cap_per_mode", ("64",), r"takes \(int\), got \(str\)"),
        ("cap_per_mode", (True,), r"takes \(int\), got \(bool\)"),
    ],
)
def test_steps_are_typed(operator: str, arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Step(operator, arguments)  # pyright: ignore[reportArgumentType]


def test_it_is_a_plug_in() -> None:
    assert make("curation", "rules", {"num_failures": 1}) == Rules(num_failures=1)
    with pytest.raises(ConfigError, match="emphasis"):
        make("curation", "rules", {"emphasis": 9.0})
