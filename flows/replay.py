"""Evaluation without an environment: held-out decision points of the logs, with every arm asked what it would do."""

from typing import Any

from components.evaluation.paired import Scores
from components.evaluation.replay import decision_points, match_scores
from components.records import Trajectory
from flows import policies
from flows.resources import Resources
from flows.stage import Deadline
from flows.trial import predict
from store import nights, trajectories


def measure(
    r: Resources, night: str, trained: dict[str, Any], _memories: Any, deadline: Deadline
) -> Any:
    """Scores of all arms; a conversation is a task, its decision points are averaged."""
    from flows.evaluate import BASE, Arms

    held = held_out_conversations(r, night)
    points = [point for item in held for point in decision_points(item)]
    adapters = {"champion": trained["champion"], "challenger": trained["challenger"]}
    scores: dict[str, Scores] = {}
    rates: dict[str, float] = {}
    actor = None
    for name, adapter in adapters.items():
        deadline.check(f"replaying held-out decisions with {name}")
        version = policies.version_name(adapter)
        actor = policies.actor_of(r, policies.load(r, adapter), version, actor)
        predictions = predict(r, actor, points)
        scores[name] = {
            conversation: (_mean(row),)
            for conversation, row in match_scores(points, predictions).items()
        }
        rates["sampled_tokens_per_s"] = policies.tokens_per_s(actor.engine)
    return Arms(scores, trained["champion"] or BASE, trained["challenger"], {}, rates, {})


def held_out_conversations(r: Resources, night: str) -> list[Trajectory]:
    """The conversations that ingestion set aside, up to this night."""
    with r.db.connect() as conn:
        names = {row.night for row in nights.recent(conn, r.settings.agent) if row.night <= night}
        ids = {
            id_
            for name in names | {night}
            for id_ in trajectories.ids_of_night(conn, r.settings.agent, name, "production")
        }
        found = trajectories.get(conn, r.files, sorted(ids))
    return [item for item in found if item.split == "test"]


def _mean(row: tuple[float | None, ...]) -> float | None:
    known = [score for score in row if score is not None]
    return sum(known) / len(known) if known else None
