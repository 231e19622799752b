"""Was the customer served? Compares the shop after the episode with the goal, and reads the reply.

Criteria, each 0 or 1; success is all of them:

    state          the shop is the opening shop with the goal's changes, and nothing else
    reply          a final reply holds every required fact and none that contradicts it
    grounded       what is told was shown by a call about this very order or product
    no_violation   no call broke the policy

Texts compare as sequences of words: lower case, punctuation and blanks aside, so `24` is in `We refund $24.` but not
in `We refund 240`.
"""

import re
from typing import Any

from components.environments._help_desk_episode import Episode
from components.environments._help_desk_shop import Scene

_WORD = re.compile(r"[a-z0-9']+")


def judge(episode: Episode, scene: Scene, goal: dict[str, Any]) -> dict[str, float]:
    """The criteria of a played episode."""
    reply = _words(episode.reply or "")
    shown = [_words(text) for text in episode.shown]
    told = all(any(_holds(reply, fact) for fact in facts) for facts in goal["facts"])
    contradicted = any(_holds(reply, other) for other in goal["excludes"])
    grounded = all(
        any(all(_holds(call, fact) for fact in together) for call in shown)
        for together in goal["shown"]
    )
    return {
        "state": float(_plain(episode.shop.state) == _plain(_merged(scene, goal["state"]))),
        "reply": float(episode.reply is not None and told and not contradicted),
        "grounded": float(grounded),
        "no_violation": float(episode.num_breaches == 0),
    }


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower().replace("’", "'"))


def _holds(words: list[str], fact: str) -> bool:
    wanted = _words(fact)
    return any(
        words[start : start + len(wanted)] == wanted
        for start in range(len(words) - len(wanted) + 1)
    )


def _merged(base: Any, changes: Any) -> Any:
    """`base` with the leaves of `changes` put over it."""
    if not isinstance(base, dict) or not isinstance(changes, dict):
        return changes
    return {
        key: base[key]
        if key not in changes
        else changes[key]
        if key not in base
        else _merged(base[key], changes[key])
        for key in {**base, **changes}
    }


def _plain(value: Any) -> Any:
    """The same value with texts reduced to their words."""
    if isinstance(value, dict):
        return {key: _plain(child) for key, child in value.items()}
    return _words(value) if isinstance(value, str) else value
