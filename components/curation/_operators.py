"""The operators that curation strategies are made of, in the language of the sandbox.

`_editor.py` copies these functions, as text, into the source of a strategy; a strategy is complete in itself and this
file is never imported by one. Each operator takes the plan first and changes it; each test takes one item.

    plan   {"trajectories": {id: trajectory}, "cases": {trajectory id: case}, "items": [item], "rl": [request],
            "memory": [trajectory id], "dropped": {trajectory id: reason}, "budget": most examples}
    item   an example reference with, beside it, "trajectory", "case" (or None), "origin" (`correction`, `success`,
            `segment`, `contrast`) and "start" (place of the turn that the person replaced, or None)

Source: the operator names are those of arXiv 2607.06140 as we reconstruct them; the code is our choice.
"""

import hashlib
import json


def start(corpus, ctx):
    """An empty plan over the corpus."""
    return {
        "trajectories": {item["id"]: item for item in corpus["trajectories"]},
        "cases": {case["trajectory_id"]: case for case in corpus["cases"]},
        "items": [],
        "rl": [],
        "memory": [],
        "dropped": {},
        "budget": ctx.budget,
    }


def finish(plan):
    """The answer: references only, corrections before successes where the budget is short."""
    ranks = {"correction": 0, "segment": 1, "contrast": 2, "success": 3}
    items = sorted(plan["items"], key=lambda item: ranks[item["origin"]])
    for item in items[plan["budget"] :]:
        leave_out(plan, item, "over the budget of examples")
    fields = ("kind", "trajectory_id", "turns", "targets", "weight", "mode_ids")
    fields = (*fields, "rejected_turn", "max_observation_chars")
    examples = [
        {name: item[name] for name in fields if name in item} for item in items[: plan["budget"]]
    ]
    for trajectory_id, trajectory in plan["trajectories"].items():
        failed = trajectory["outcome"] is False
        reason = "failed, and nobody corrected it" if failed else "nobody judged it"
        plan["dropped"].setdefault(trajectory_id, reason)
    kept = {item["trajectory_id"] for item in examples}
    dropped = [
        {"trajectory_id": trajectory_id, "reason": reason}
        for trajectory_id, reason in plan["dropped"].items()
        if trajectory_id not in kept
    ]
    return {"examples": examples, "rl": plan["rl"], "memory": plan["memory"], "dropped": dropped}


def leave_out(plan, item, reason):
    """Note why an example is not there."""
    plan["dropped"].setdefault(item["trajectory_id"], reason)


def drop_trajectories_if(plan, test, reason):
    """Forget whole trajectories; `test` takes the trajectory and its case."""
    for trajectory_id, trajectory in plan["trajectories"].items():
        if test(trajectory, plan["cases"].get(trajectory_id)):
            plan["dropped"].setdefault(trajectory_id, reason)


def had_infrastructure_fault(trajectory, case):
    """The provider or the network failed, not the agent."""
    stopped = (trajectory["stop_reason"] or "").startswith("error")
    return stopped or (case is not None and case["fault"] == "infrastructure")


def was_dismissed(trajectory, case):
    """A person looked at the failure and said it is none."""
    return case is not None and case["review"] == "dismissed"


def is_confirmed(item):
    """A person looked at the failure behind the example and said that it is one."""
    return item["case"] is not None and item["case"]["review"] == "confirmed"


def usable(plan):
    """Trajectories that no rule dropped."""
    return [item for item in plan["trajectories"].values() if item["id"] not in plan["dropped"]]


def new_item(plan, trajectory, turns, targets, origin):
    """An example of a trajectory, aimed at its failure mode."""
    case = plan["cases"].get(trajectory["id"])
    return {
        "kind": "sft",
        "trajectory_id": trajectory["id"],
        "turns": turns,
        "targets": targets,
        "weight": 1.0,
        "mode_ids": [case["mode_id"]] if case and case["mode_id"] else [],
        "trajectory": trajectory,
        "case": case,
        "origin": origin,
        "start": None,
    }


def view(turn):
    """What was seen at a turn, without the marks that reading left on it."""
    shown = ("role", "text", "chars", "calls")
    return [[message[name] for name in shown] for message in turn["observation"]]


def by_person(turn):
    """Done by an operator or a teacher."""
    return turn["executor"] in ("human", "teacher")


def place_of_takeover(trajectory, first):
    """Place of the turn that the person's first turn replaces; its own place when it simply goes on."""
    turns = trajectory["turns"]
    seen = view(turns[first])
    told = [said["turn"] for said in trajectory["feedback"] if said["kind"] == "edit"]
    for place in [*[turn for turn in told if turn is not None], *range(first - 1, -1, -1)]:
        if place < first and view(turns[place]) == seen:
            return place
    return first


def from_corrections(plan):
    """What people did where the agent failed: the history up to their start, then all they did."""
    for trajectory in usable(plan):
        person = [place for place, turn in enumerate(trajectory["turns"]) if by_person(turn)]
        if person:
            first = person[0]
            at = place_of_takeover(trajectory, first)
            turns = [*range(at), *range(first, person[-1] + 1)]
            item = new_item(plan, trajectory, turns, person, "correction")
            item["start"] = at
            plan["items"].append(item)


def from_successes(plan):
    """Conversations that the policy brought to a good end by itself."""
    for trajectory in usable(plan):
        turns = trajectory["turns"]
        if (
            turns
            and trajectory["outcome"] is True
            and all(turn["executor"] == "policy" for turn in turns)
        ):
            places = list(range(len(turns)))
            plan["items"].append(new_item(plan, trajectory, places, list(places), "success"))


def drop_targets_if(plan, test, reason):
    """Take the loss off single actions; `test` takes the turn. An example without targets goes."""
    kept = []
    for item in plan["items"]:
        turns = item["trajectory"]["turns"]
        item["targets"] = [place for place in item["targets"] if not test(turns[place])]
        if item["targets"]:
            kept.append(item)
        else:
            leave_out(plan, item, reason)
    plan["items"] = kept


def is_malformed(turn):
    """Nobody should learn to write this: broken arguments, unparsable text, nothing at all, calls without result."""
    action = turn["action"]
    broken = any(call["problem"] for call in action["calls"])
    marked = any(
        mark.startswith(("unparsable", "no result", "unanswered")) for mark in action["marks"]
    )
    empty = not action["calls"] and not action["text"].strip()
    return bool(turn["error"]) or broken or marked or empty


def keep_if(plan, test, reason):
    """Keep the examples that pass."""
    for item in plan["items"]:
        if not test(item):
            leave_out(plan, item, reason)
    plan["items"] = [item for item in plan["items"] if test(item)]


def drop_if(plan, test, reason, at_least):
    """Drop the examples that pass, but leave `at_least` of every failure mode."""
    left = {}
    for item in plan["items"]:
        left[mode_of(item)] = left.get(mode_of(item), 0) + 1
    kept = []
    for item in plan["items"]:
        if test(item) and left[mode_of(item)] > at_least:
            left[mode_of(item)] -= 1
            leave_out(plan, item, reason)
        else:
            kept.append(item)
    plan["items"] = kept


def mode_of(item):
    """The failure mode an example belongs to, else its signature, else its origin."""
    if item["mode_ids"]:
        return item["mode_ids"][0]
    return item["case"]["signature"] if item["case"] else item["origin"]


def dedupe(plan, key):
    """Keep the first example of each key."""
    seen = set()
    kept = []
    for item in plan["items"]:
        mark = digest_of(key(item))
        if mark in seen:
            leave_out(plan, item, "the same as another example")
        else:
            kept.append(item)
        seen.add(mark)
    plan["items"] = kept


def digest_of(value):
    """Short name of any JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def conversation(item):
    """All that is said and done in an example."""
    turns = item["trajectory"]["turns"]
    said = [[turns[place]["observation"], turns[place]["action"]] for place in item["turns"]]
    return [item["kind"], said, [item["turns"].index(place) for place in item["targets"]]]


def same_actions(item):
    """The target actions alone, with their arguments, whatever the customer said."""
    actions = [item["trajectory"]["turns"][place]["action"] for place in item["targets"]]
    calls = [[[call["name"], call["arguments"]] for call in action["calls"]] for action in actions]
    texts = [action["text"] for action in actions if not action["calls"]]
    return [item["kind"], item["origin"], calls, texts]


def cap_per_mode(plan, most):
    """At most so many examples of one failure mode, chosen by digest, so the choice is the same every night."""
    ranked = sorted(
        plan["items"], key=lambda item: digest_of([item["trajectory_id"], item["kind"]])
    )
    taken = {}
    over = set()
    for item in ranked:
        if item["case"] is not None:
            taken[mode_of(item)] = taken.get(mode_of(item), 0) + 1
            if taken[mode_of(item)] > most:
                over.add((item["trajectory_id"], item["origin"]))
                leave_out(plan, item, "enough examples of this failure mode")
    plan["items"] = [
        item for item in plan["items"] if (item["trajectory_id"], item["origin"]) not in over
    ]


def decision_of(item):
    """Place of the person's action at the first wrong turn; their first action when the turn is not known."""
    turns = item["trajectory"]["turns"]
    person = [place for place in item["turns"] if by_person(turns[place])]
    case = item["case"]
    if case is None or case["turn"] is None:
        return person[0]
    return person[min(max(case["turn"] - item["start"], 0), len(person) - 1)]


def segment_around(plan, test, after):
    """Add to each correction a segment that ends soon after the decision that went wrong."""
    for item in list(plan["items"]):
        if item["origin"] == "correction" and test(item):
            decision = decision_of(item)
            targets = [place for place in item["targets"] if decision <= place <= decision + after]
            if targets and targets != item["targets"]:
                turns = [place for place in item["turns"] if place <= targets[-1]]
                plan["items"].append(
                    {**item, "turns": turns, "targets": targets, "origin": "segment"}
                )


def contrast_pair(plan, test):
    """Where person and policy saw the same and did otherwise, the person's action is preferred."""
    for item in list(plan["items"]):
        at = item["start"]
        if item["origin"] != "correction" or at is None or not test(item):
            continue
        turns = item["trajectory"]["turns"]
        first = item["targets"][0]
        same_view = view(turns[at]) == view(turns[first])
        if at != first and same_view and turns[at]["action"] != turns[first]["action"]:
            pair = {**item, "kind": "preference", "rejected_turn": at, "origin": "contrast"}
            pair["turns"] = [place for place in item["turns"] if place <= first]
            pair["targets"] = [first]
            plan["items"].append(pair)


def reweight(plan, test, factor):
    """Multiply the weight of the examples that pass; a weight stays in [0.125, 8]."""
    for item in plan["items"]:
        if test(item):
            item["weight"] = min(max(item["weight"] * factor, 0.125), 8.0)


def truncate_observation(plan, test, most):
    """Shorten the tool results of the examples that pass."""
    for item in plan["items"]:
        if test(item):
            item["max_observation_chars"] = min(item.get("max_observation_chars", most), most)


def practise(plan):
    """Ask for rollouts with the tools that failures are about, by their share of the failures."""
    wanted = {}
    for trajectory in plan["trajectories"].values():
        case = plan["cases"].get(trajectory["id"])
        if case is None or case["fault"] != "model" or was_dismissed(trajectory, case):
            continue
        if case["tool"] in trajectory["tools"]:
            wanted.setdefault(case["tool"], []).append(case)
    total = sum(len(cases) for cases in wanted.values())
    for tool in sorted(wanted, key=lambda name: (-len(wanted[name]), name)):
        plan["rl"].append(
            {
                "skills": [tool],
                "weight": len(wanted[tool]) / total,
                "mode_ids": sorted({case["mode_id"] for case in wanted[tool] if case["mode_id"]}),
                "trajectory_ids": [case["trajectory_id"] for case in wanted[tool]],
            }
        )


def to_memory(plan, test):
    """Offer the trajectories of the examples that pass to memory."""
    for item in plan["items"]:
        if test(item) and item["trajectory_id"] not in plan["memory"]:
            plan["memory"].append(item["trajectory_id"])


def is_correction(item):
    """A person finished it."""
    return item["origin"] == "correction"


def has_long_observation(item):
    """Some tool result is longer than 400 characters."""
    turns = [item["trajectory"]["turns"][place] for place in item["turns"]]
    seen = [message for turn in turns for message in turn["observation"]]
    return any(message["role"] == "tool" and message["chars"] > 400 for message in seen)


def is_long_and_routine(item):
    """A success of many turns that no failure points to."""
    return item["origin"] == "success" and item["case"] is None and len(item["turns"]) > 8
