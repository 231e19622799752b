"""Strategy 0, run for real in its sandbox."""

import ast
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from components.curation import _operators
from components.curation._corpus import build_corpus
from components.curation._editor import OPERATORS, Step, compose, operators_of
from components.curation._lint import lint
from components.curation._sandbox import Limits
from components.curation.apply import apply_strategy
from components.curation.strategy_zero import STEPS, strategy_zero
from components.errors import RecordError
from components.records import Dropped, Review, Trajectory
from components.serial import canonical, digest
from tests.components.curation.conversations import (
    OPENING,
    call,
    case_of,
    corrected,
    corrected_midway,
    failed,
    result,
    say,
    success,
    turns,
)

ONCE = Limits(num_runs=1, cpu_s=20)


def test_the_source_is_complete_and_named_by_its_digest() -> None:
    strategy = strategy_zero()
    assert strategy.id == digest(strategy.source)
    assert strategy.parent_id is None
    assert operators_of(strategy.source) == tuple(step.operator for step in STEPS)
    lint(strategy.source)


def test_corrections_successes_practice_and_memory() -> None:
    """Two corrections, one success, one failure that nobody corrected.

    Corrections imitate the person's actions alone; at both take-overs policy and person saw the same and did
    otherwise, so each gives one preference pair. Practice: both model failures are about cancel_order.
    """
    records = [corrected(), corrected_midway(), success(), failed()]
    cases = [
        case_of(records[0]),
        case_of(records[1], turn=1),
        case_of(records[3], "wrong_outcome||", mode_id="m2"),
    ]
    curated = apply_strategy(strategy_zero(), records, cases, limits=Limits(cpu_s=20))
    examples = [(item.kind, item.trajectory_id, item.targets) for item in curated.bundle.examples]
    assert examples == [
        ("sft", "fixed", (2, 4, 6)),
        ("sft", "midway", (4, 6)),
        ("preference", "fixed", (2,)),
        ("preference", "midway", (4,)),
        ("sft", "ok", (2, 4)),
    ]
    assert curated.bundle.examples[0].mode_ids == ("m1",)
    assert curated.bundle.dropped == (Dropped("lost", "failed, and nobody corrected it"),)
    (request,) = curated.bundle.rl
    assert (request.skills, request.weight, request.mode_ids) == (("cancel_order",), 1.0, ("m1",))
    assert curated.bundle.memory_trajectories == ("fixed", "midway")
    assert curated.rejected == ()
    assert curated.bundle.strategy_id == strategy_zero().id


def test_a_confirmed_failure_weighs_twice() -> None:
    """One case is confirmed, the other undecided: 2 x 1 and 1."""
    confirmed = replace(
        case_of(corrected()),
        review=Review("confirmed", "ada", datetime(2026, 1, 31, tzinfo=UTC)),
    )
    curated = apply_strategy(
        strategy_zero(),
        [corrected(), corrected_midway()],
        [confirmed, case_of(corrected_midway(), turn=1)],
        limits=ONCE,
    )
    weights = {
        item.trajectory_id: item.weight for item in curated.bundle.examples if item.kind == "sft"
    }
    assert weights == {"fixed": 2.0, "midway": 1.0}


def test_the_same_records_give_the_same_bundle() -> None:
    records, cases = [corrected(), success()], [case_of(corrected())]
    first = apply_strategy(strategy_zero(), records, cases, limits=ONCE)
    assert apply_strategy(strategy_zero(), records, cases, limits=ONCE) == first


def test_no_data_gives_an_empty_bundle() -> None:
    bundle = apply_strategy(strategy_zero(), [], [], limits=ONCE).bundle
    assert (bundle.examples, bundle.rl, bundle.memory_trajectories, bundle.dropped) == (
        (),
        (),
        (),
        (),
    )


def test_what_is_left_out_and_why() -> None:
    """An infrastructure fault, a dismissed case, a success whose only action is malformed, a double."""
    broken = Trajectory("broken", "desk", turns((OPENING, call("look", "{"))), outcome=True)
    review = Review("dismissed", "ann", datetime(2024, 5, 1, tzinfo=UTC))
    dismissed, cut = corrected("dismissed", "Cancel O2."), corrected("cut", "Cancel O3.")
    stopped = replace(success("stopped"), stop_reason="error: 502")
    records = [broken, dismissed, cut, stopped, success(), success("again"), failed()]
    cases = [case_of(dismissed, review=review), case_of(cut, fault="infrastructure")]
    bundle = apply_strategy(strategy_zero(), records, cases, limits=ONCE).bundle
    assert [item.trajectory_id for item in bundle.examples] == ["ok"]
    assert {item.trajectory_id: item.reason for item in bundle.dropped} == {
        "broken": "malformed assistant turn",
        "dismissed": "its failure case was dismissed in review",
        "cut": "infrastructure fault",
        "stopped": "infrastructure fault",
        "again": "the same as another example",
        "lost": "failed, and nobody corrected it",
    }
    assert bundle.rl == ()


def test_a_malformed_action_loses_its_target_and_the_rest_stays() -> None:
    own = turns((OPENING, call("look", "{")), ((result("error"),), say("Sorry.")))
    trajectory = Trajectory("t", "desk", own, outcome=True)
    (example,) = apply_strategy(strategy_zero(), [trajectory], [], limits=ONCE).bundle.examples
    assert example.targets == (4,)


def test_a_failure_mode_is_capped_at_64() -> None:
    """70 corrections of one mode: 64 stay, and each that stays gives its pair; successes are not capped."""
    records = [corrected(f"t{number}", f"Cancel O{number}.") for number in range(70)]
    wins = [success(f"s{number}", (*OPENING, *OPENING[:1] * (number + 1))) for number in range(3)]
    bundle = apply_strategy(
        strategy_zero(), [*records, *wins], [case_of(item) for item in records], limits=ONCE
    ).bundle
    kinds = [item.kind for item in bundle.examples if item.mode_ids]
    assert (kinds.count("sft"), kinds.count("preference")) == (64, 64)
    assert sum(not item.mode_ids for item in bundle.examples) == 3
    assert {item.reason for item in bundle.dropped} == {"enough examples of this failure mode"}


def test_a_budget_keeps_corrections_before_successes() -> None:
    records = [success(), corrected()]
    bundle = apply_strategy(strategy_zero(), records, [], budget=1, limits=ONCE).bundle
    assert [item.trajectory_id for item in bundle.examples] == ["fixed"]
    assert bundle.dropped == (Dropped("ok", "over the budget of examples"),)


def test_a_strategy_never_sees_dev_or_test() -> None:
    with pytest.raises(RecordError, match="'ok' is of split 'test'"):
        apply_strategy(strategy_zero(), [replace(success(), split="test")], [], limits=ONCE)


def test_the_corpus_names_turns_by_place_and_shortens_text() -> None:
    """The policy's turns are numbered 10 and 11 here, so a case at turn 11 is at place 1."""
    own = turns((OPENING, call("look")), ((result("x" * 30),), say("Done.")), at=10)
    trajectory = Trajectory("t", "desk", own, outcome=False)
    data = build_corpus([trajectory], [case_of(trajectory, turn=11)], max_chars=20).data
    assert data["cases"][0]["turn"] == 1
    shown = data["trajectories"][0]["turns"][1]["observation"][0]
    assert (shown["text"], shown["chars"]) == ("x" * 20, 30)


def test_a_full_corpus_leaves_out_successes_first() -> None:
    """Room for exactly the corrected one, though it comes second."""
    (alone,) = build_corpus([corrected()], []).data["trajectories"]
    max_mb = len(canonical(alone)) / 1024 / 1024
    corpus = build_corpus([success(), corrected()], [], max_mb=max_mb)
    assert [item["id"] for item in corpus.data["trajectories"]] == ["fixed"]
    (dropped,) = corpus.left_out
    assert dropped.trajectory_id == "ok"
    assert dropped.reason.startswith("the corpus is limited to")


def test_every_operator_is_typed_and_in_the_language_of_the_sandbox() -> None:
    """The table lists the parameters after the plan of every operator; all operators together lint and compose."""
    tree = ast.parse(Path(_operators.__file__).read_text(encoding="utf-8"))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for name, kinds in OPERATORS.items():
        parameters = [argument.arg for argument in functions[name].args.args]
        assert parameters[0] == "plan"
        assert len(parameters) == 1 + len(kinds), name
    plain = [Step(name) for name, kinds in OPERATORS.items() if not kinds]
    lint(compose("All plain operators.", plain))
