"""The gate: every criterion can refuse, each says why with its numbers, and chance does not get past it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from components.errors import ConfigError
from components.evaluation.report import Arm, build_report, skill_slices
from components.evaluation.strict import Strict
from components.plugins import make
from components.records import Criterion, Lineage, Report, Task
from tests.components.evaluation.simulate_gate import KINDS, World, promotions

LINEAGE = Lineage((), "tests", "1", "rule", "", seed=1)
PROVEN: dict[str, bool | None] = {"delivery": True, "disjoint": True, "no_older_suites": True}


def report_of(
    wins: int, losses: int, ties: int, slices: Mapping[str, Sequence[str]] | None = None
) -> Report:
    """Tasks t000..: first the wins, then the losses, then the ties; one seed."""
    num = wins + losses + ties
    champion = {f"t{place:03d}": (float(not place < wins),) for place in range(num)}
    challenger = {
        f"t{place:03d}": (float(not wins <= place < wins + losses),) for place in range(num)
    }
    arms = Arm("champion-1", champion), Arm("challenger-2", challenger)
    return build_report(*arms, slices or {}, LINEAGE).report


def criterion(report: Report, name: str, facts: dict[str, bool | None] | None = None) -> Criterion:
    decision = Strict().decide(report, PROVEN if facts is None else facts)
    return next(item for item in decision.criteria if item.name == name)


def test_all_criteria_met() -> None:
    """30 better, 5 worse of 120: difference 25/120 = .208."""
    report = report_of(30, 5, 85, {"skill:cancel": [f"t{place:03d}" for place in range(40, 120)]})
    decision = Strict().decide(report, PROVEN)
    assert decision.accepted
    assert decision.report_id == report.id
    assert [item.name for item in decision.criteria] == [
        *("sample", "improvement", "no harm", "not forgotten", "delivery", "disjoint")
    ]
    assert all(item.passed is True for item in decision.criteria)
    assert "difference +0.208" in decision.criteria[1].reason
    assert "30 tasks better, 5 worse" in decision.criteria[1].reason


def test_no_improvement() -> None:
    """10 better, 9 worse: p is 1 (two-sided, sum 1 of 19), the interval holds 0."""
    found = criterion(report_of(10, 9, 101), "improvement")
    assert found.passed is False
    assert "p = 1.0000" in found.reason


def test_a_fall_is_no_improvement() -> None:
    assert criterion(report_of(0, 30, 90), "improvement").passed is False


def test_too_few_tasks() -> None:
    decision = Strict().decide(report_of(30, 0, 60), PROVEN)
    assert not decision.accepted
    assert decision.criteria[0].passed is False
    assert decision.criteria[0].reason.startswith("90 tasks with up to 1 seeds scored in both arms")
    assert decision.criteria[0].reason.endswith("at least 100 needed")


def test_unscored_tasks_do_not_count() -> None:
    """120 tasks, 30 of them without a score: 90 are left."""
    report = report_of(40, 0, 80)
    unscored = dict.fromkeys(sorted(report.scores["champion"])[-30:], (None,))
    arms = {arm: {**scores, **unscored} for arm, scores in report.scores.items()}
    built = build_report(Arm("a", arms["champion"]), Arm("b", arms["challenger"]), {}, LINEAGE)
    assert len(built.unscored) == 30
    found = criterion(built.report, "sample")
    assert found.passed is False
    assert (
        "90 tasks with up to 1 seeds scored in both arms, 30 excluded as unscored" in found.reason
    )


def test_nothing_scored_cannot_be_judged() -> None:
    report = build_report(
        Arm("a", {"t": (None,)}), Arm("b", {"t": (None,)}), {"s": ["t"]}, LINEAGE
    ).report
    decision = Strict().decide(report, PROVEN)
    assert not decision.accepted
    assert [item.passed for item in decision.criteria[:3]] == [False, None, None]


def test_harm_in_one_slice_refuses() -> None:
    """40 better overall, and the 12 losses all in one skill: p = 1/4096 on it."""
    slices = {"skill:refund": [f"t{place:03d}" for place in range(40, 52)], "skill:rest": ["t000"]}
    report = report_of(40, 12, 80, slices)
    found = criterion(report, "no harm")
    assert found.passed is False
    assert found.reason == (
        "worse: skill:refund -1.000 on 12 tasks (p = 0.0002); not judged, under 10 tasks: skill:rest"
    )
    assert not Strict().decide(report, PROVEN).accepted


def test_slices_without_enough_tasks_cannot_be_judged() -> None:
    found = criterion(report_of(30, 0, 90, {"skill:x": ["t000", "t001"]}), "no harm")
    assert found.passed is None
    assert "could not be judged" in found.reason


def test_an_older_suite_must_not_be_forgotten() -> None:
    """The suite's 12 tasks are all lost; they stay out of the main comparison, which sees 108 tasks."""
    suite = {"suite:night-1": [f"t{place:03d}" for place in range(40, 52)]}
    report = report_of(40, 12, 68, suite)
    assert (report.paired.num_tasks, report.paired.losses) == (108, 0)
    facts = {**PROVEN, "no_older_suites": None}
    found = criterion(report, "not forgotten", facts)
    assert found.passed is False
    assert "suite:night-1 -1.000 on 12 tasks" in found.reason


def test_a_kept_suite_passes() -> None:
    suite = {"suite:night-1": [f"t{place:03d}" for place in range(60, 80)]}
    found = criterion(report_of(40, 0, 80, suite), "not forgotten", {})
    assert found.passed is True
    assert "lowest suite:night-1 +0.000" in found.reason


@pytest.mark.parametrize("fact", [None, False])
def test_no_suite_needs_a_word_for_it(fact: bool | None) -> None:
    found = criterion(report_of(30, 0, 90), "not forgotten", {**PROVEN, "no_older_suites": fact})
    assert found.passed is None


@pytest.mark.parametrize("name", ["delivery", "disjoint"])
def test_a_proof_that_fails_or_is_missing_refuses(name: str) -> None:
    report = report_of(30, 0, 90)
    for facts, passed in (
        ({**PROVEN, name: False}, False),
        ({**PROVEN, name: None}, None),
        ({key: value for key, value in PROVEN.items() if key != name}, None),
    ):
        assert criterion(report, name, facts).passed is passed
        assert not Strict().decide(report, facts).accepted


def test_a_report_is_named_by_its_content() -> None:
    assert report_of(3, 1, 6).id == report_of(3, 1, 6).id != report_of(1, 3, 6).id
    with pytest.raises(ValueError, match="slices name task 'ghost'"):
        report_of(3, 1, 6, {"s": ["ghost"]})


def test_slices_by_skill() -> None:
    one = Task("a", "x", "desk", {}, required_skills=("cancel", "look", "look"))
    two = replace(one, id="b", required_skills=("look",))
    assert skill_slices([one, two]) == {"skill:cancel": ("a",), "skill:look": ("a", "b")}


def test_it_is_a_plug_in() -> None:
    assert make("evaluation", "strict", {"min_tasks": 20}) == Strict(min_tasks=20)
    with pytest.raises(ConfigError, match="alpha"):
        make("evaluation", "strict", {"alpha": 0.0})


@pytest.mark.slow
def test_chance_is_not_promoted() -> None:
    """2,000 challengers without improvement. At most 5% may pass; the two-sided test makes about 2.5% expected.

    100 of 2,000 is the promise; at a true rate of 2.5% (50, standard deviation 7) it is seven deviations away.
    """
    num = {"same": 1000, "shuffled": 500, "worse": 500}
    passed = sum(
        promotions(kind, num[kind], World(60, 3), 10_000 * place)
        for place, kind in enumerate(KINDS)
    )
    assert passed <= 100


def test_a_real_improvement_is_promoted() -> None:
    """About 17 points (20, cut off at certainty) on 100 tasks with 3 seeds: the standard error is below 4 points."""
    assert promotions("better", 60, World(), 77) >= 54
