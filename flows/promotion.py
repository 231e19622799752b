"""Promotion: what a person asked for in the app or on the command line is carried out, once, and its outcome written.

The request is locked while the registry's aliases move, so two processes that look at the same time carry it out once.
Carrying out one that was cut off half-way completes it: a promotion of the champion changes nothing, and a rollback is
done when another version serves than the one it was asked about.
"""

from datetime import UTC, datetime

from components.errors import PromotionRefused
from flows import policies
from flows.resources import Resources
from store import promotions, reports
from store.promotions import Promotion, Status


def ask(r: Resources, wish: promotions.Wish) -> str:
    """Ask and carry out at once, after whatever was asked before; what came of it.

    Raises:
        PromotionRefused: the registry says no; the request is kept with the reason.
    """
    carry_out(r)
    with r.db.connect() as conn:
        promotions.ask(conn, wish, datetime.now(UTC))
    status, outcome = carry_out(r) or ("done", "another process carried it out")
    if status == "refused":
        raise PromotionRefused(outcome)
    return outcome


def carry_out(r: Resources) -> tuple[Status, str] | None:
    """Carry out the open request of this agent; None when none is open."""
    with r.db.connect() as conn:
        request = promotions.take(conn, r.settings.agent)
        if request is None:
            return None
        try:
            status, outcome = "done", _apply(r, request)
        except PromotionRefused as error:
            status, outcome = "refused", str(error)
        promotions.resolve(conn, request.id, status, outcome, datetime.now(UTC))
    return status, outcome


def _apply(r: Resources, request: Promotion) -> str:
    registry, agent = policies.registry_of(r), r.settings.agent
    now = datetime.now(UTC)
    if request.action == "promote" and request.to_version is not None:
        made = registry.promote(agent, request.to_version, request.actor, request.reason, now)
        return f"version {made.version} is the champion"
    champion = registry.resolve(agent, "champion")
    if champion is not None and champion.version != request.from_version:
        return f"version {champion.version} is the champion already"
    made = registry.rollback(agent, request.actor, request.reason, now)
    return f"version {made.version} is the champion again"


def check_gate(r: Resources, number: str) -> None:
    """Refuse a version that the gate refused.

    Raises:
        PromotionRefused: with the criteria that were not met.
    """
    version = policies.registry_of(r).version(r.settings.agent, number)
    if version is None or version.tags.get("gate") != "refused":
        return
    with r.db.connect() as conn:
        stored = reports.get(conn, version.tags.get("report", ""))
    failed = [
        f"{each.name}: {each.reason}"
        for each in (stored.decision.criteria if stored and stored.decision else ())
        if each.passed is not True
    ]
    raise PromotionRefused(
        f"the gate refused version {number}: {'; '.join(failed) or 'no report is kept'}. "
        "Use --override to promote it all the same"
    )
