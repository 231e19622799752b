"""What people decide: dismissed cases leave the data, late reviews wait a night, promotions move the aliases."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from components.errors import PromotionRefused
from components.records import Bundle, FailureCase, ReviewVerdict
from flows import policies
from flows.curate import curate
from flows.resources import Resources
from store import bundles, cases, nights, promotions, reviews
from tests.flows.homes import Home
from tests.kill_night import NIGHT

pytestmark = [pytest.mark.postgres, pytest.mark.network]

DISMISSED = "its failure case was dismissed in review"
NEXT, LATER = "2026-12-01", "2026-12-02"
BEGAN = datetime.now(UTC) + timedelta(hours=12)
"""When the next night begins: after everything that this test run wrote."""


@pytest.fixture
def reviewed(one_night: Home, copy_of: Callable[..., Home]) -> Home:
    return copy_of(one_night)


def found_cases(r: Resources) -> list[FailureCase]:
    with r.db.connect() as conn:
        return cases.as_of(conn, "help-desk", BEGAN + timedelta(days=9), NIGHT)


def decide(r: Resources, case: FailureCase, verdict: ReviewVerdict, at: datetime) -> None:
    with r.db.connect() as conn:
        reviews.decide(conn, case.id, 0, reviews.Change("mara", "looked at it", verdict), at)


def bundle_of(r: Resources, night: str, began: datetime) -> Bundle:
    """What is curated in a night that began then."""
    with r.db.connect() as conn:
        nights.put(conn, nights.Night(night, "help-desk", "running", began, "1"))
    curated = curate(r, night, "no new logs")
    assert curated.ok, curated.cause
    with r.db.connect() as conn:
        return bundles.get(conn, curated.output["bundle_id"])


def test_a_dismissed_case_leaves_its_trajectory_out_and_a_confirmed_one_stays(
    reviewed: Home,
) -> None:
    with reviewed.open() as r:
        wrong, right, *_ = found_cases(r)
        before = bundle_of(r, NEXT, BEGAN)
        decide(r, wrong, "dismissed", BEGAN + timedelta(hours=1))
        decide(r, right, "confirmed", BEGAN + timedelta(hours=1))
        after = bundle_of(r, LATER, BEGAN + timedelta(days=1))
    used = {example.trajectory_id for example in before.examples}
    assert {wrong.trajectory_id, right.trajectory_id} <= used
    assert {example.trajectory_id for example in after.examples} == used - {wrong.trajectory_id}
    assert [item.reason for item in after.dropped if item.trajectory_id == wrong.trajectory_id] == [
        DISMISSED
    ]
    assert wrong.trajectory_id not in after.memory_trajectories

    # A confirmed failure weighs twice as much as one that nobody looked at.
    weights = {
        example.trajectory_id: example.weight for example in after.examples if example.kind == "sft"
    }
    assert weights.pop(right.trajectory_id) == 2.0
    assert set(weights.values()) == {1.0}


def test_a_review_after_the_night_began_counts_for_the_next_one(reviewed: Home) -> None:
    with reviewed.open() as r:
        (late, *_) = found_cases(r)
        decide(r, late, "dismissed", BEGAN + timedelta(seconds=1))
        tonight = bundle_of(r, NEXT, BEGAN)
        tomorrow = bundle_of(r, LATER, BEGAN + timedelta(days=1))
    assert late.trajectory_id in {example.trajectory_id for example in tonight.examples}
    assert late.trajectory_id not in {example.trajectory_id for example in tomorrow.examples}


def aliases(home: Home) -> tuple[str | None, ...]:
    """The versions that are champion, challenger and previous."""
    with home.open() as r:
        registry = policies.registry_of(r)
        found = [
            registry.resolve("help-desk", alias) for alias in ("champion", "challenger", "previous")
        ]
    return tuple(version.version if version else None for version in found)


def promote(home: Home, version: str | None = None, override: bool = False) -> int:
    return home.do(
        "flows.operate:promote",
        version=version,
        override=override,
        actor="mara",
        reason="looks right",
    )


def test_a_refused_challenger_is_promoted_only_on_purpose_and_rolled_back(reviewed: Home) -> None:
    """The tiny night's gate refuses for want of tasks, so its version 2 is no challenger."""
    assert aliases(reviewed) == ("1", None, None)
    with pytest.raises(PromotionRefused, match="no challenger waits"):
        promote(reviewed)
    with pytest.raises(PromotionRefused, match="the gate refused version 2: sample: 6 tasks"):
        promote(reviewed, "2")
    assert aliases(reviewed) == ("1", None, None)

    assert promote(reviewed, "2", override=True) == 0
    assert aliases(reviewed) == ("2", None, "1")
    assert reviewed.do("flows.operate:rollback", actor="ivo", reason="worse") == 0
    assert aliases(reviewed) == ("1", None, None)

    with reviewed.open() as r:
        second = policies.registry_of(r).version("help-desk", "2")
        with r.db.connect() as conn:
            kept = promotions.recent(conn, "help-desk")
    assert second is not None
    assert (second.tags["promoted_by"], second.tags["promoted_because"]) == ("mara", "looks right")
    assert (second.tags["rolled_back_by"], second.tags["rolled_back_because"]) == ("ivo", "worse")
    assert [(p.action, p.actor, p.reason, p.status) for p in kept] == [
        ("rollback", "ivo", "worse", "done"),
        ("promote", "mara", "looks right", "done"),
    ]


def test_a_version_that_does_not_exist_is_not_promoted(reviewed: Home) -> None:
    with pytest.raises(PromotionRefused, match="no version '9'"):
        promote(reviewed, "9", override=True)
    assert aliases(reviewed) == ("1", None, None)


def test_what_the_app_asked_for_is_carried_out_by_the_next_night(reviewed: Home) -> None:
    """The night is done already, so it does nothing else."""
    with reviewed.open() as r, r.db.connect() as conn:
        wish = promotions.Wish("help-desk", "promote", "1", "2", "mara", "from the app")
        promotions.ask(conn, wish, datetime.now(UTC))
    reviewed.night(NIGHT)
    assert aliases(reviewed) == ("2", None, "1")
    with reviewed.open() as r, r.db.connect() as conn:
        (kept,) = promotions.recent(conn, "help-desk")
    assert (kept.status, kept.outcome) == ("done", "version 2 is the champion")
