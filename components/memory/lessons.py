"""Lessons: how requests of one kind are handled, from what operators corrected and from what went well.

    cue        Please cancel <order>. | I no longer need <order>. Cancel it.
    content    get_order(order), then cancel_order(order), then reply naming order [if status is packed]
               Or: get_order(order), then escalate(order, reason=shipped), then reply naming order [if status is shipped]

1. Reduce each solved conversation to cue and procedure (`_procedures.py`). Failures without a correction teach nothing.
2. Gather cues into families: a cue joins the family with whose first cue it shares most telling words (content words and
   placeholders), at least `overlap` of all words of both; families of the bank come first, then tonight's, fewest words
   first. Families with equal procedures become one.
3. The content lists the family's procedures, most supported first, at most `max_procedures`. Where some begin alike and a
   word of the last result that they share tells them apart in every conversation (each seen twice or more), it is the
   condition; failing that a number of it (`[if price is under 100]`): a round one between two procedures, if they were
   seen often enough that a number without meaning would divide them in at most one of ten families. Failing both,
   the lesson stops where they part (`get_order(order), then it depends`).
4. A family of the bank gets a version + 1 with tonight's procedures ahead of its older ones; if neither content, cue nor
   sources change there is no new version, so a second run writes nothing. `uses` and `successes` start again when the
   content changes.
5. Junk is not written: a cue without telling words, and any entry that repeats a value of one conversation (an order
   number, a name, an address).

Kind: `lesson` when a correction is among the sources, else `workflow`; so a failed conversation never makes a workflow.
Source: the split into lessons and workflows follows ReasoningBank (arXiv 2509.25140) and Agent Workflow Memory (arXiv
2409.07429).
Our choice: rules instead of a model, word overlap for families, conditions from results; and no open choice, since a small
policy was seen to copy the first procedure of a list, `escalate` before `refund` (docs/experiments.md). Deterministic, the same for any order of trajectories; no trajectories give no entries.
"""

import dataclasses
import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from components.memory._cues import content_words, leaks, telling_words
from components.memory._procedures import NUMBER, THEN, Result, Solved, solved
from components.plugins import plugin, version_of
from components.records import Lineage, MemoryEntry, Trajectory
from components.serial import digest

OR = "\nOr: "
CUES = " | "
MAX_CHANCE = 0.1
"""How probable it may be that one of a result's numbers divides two procedures by chance."""
DEPENDS = "it depends"
UNDER = "under "
OR_MORE = " or more"
CONDITION = re.compile(r" \[if (?P<said>[^\]]*)\]$")


@dataclass(slots=True)
class Family:
    """Requests of one kind, while they are gathered."""

    words: frozenset[str]
    entry: MemoryEntry | None = None
    members: list[Solved] = field(default_factory=list)

    @property
    def procedures(self) -> frozenset[str]:
        """What the bank's entry lists; for a new family, what its members did."""
        if self.entry is None:
            return frozenset(member.procedure for member in self.members)
        if DEPENDS in self.entry.content:  # it says too little to be the same as another
            return frozenset([self.entry.id])
        return frozenset(map(_bare, self.entry.content.split(OR)))


@plugin
class Lessons:
    overlap: float = 0.5
    """Shared telling words of two cues of one family, as a share of the words of both, in (0, 1]."""
    max_procedures: int = 3
    """Procedures listed per entry, at least 1."""
    max_cues: int = 6
    """Wordings kept per entry, at least 1."""
    max_sources: int = 50
    """Conversations an entry is built from; later ones add nothing."""

    def __post_init__(self) -> None:
        counts = (self.max_procedures, self.max_cues, self.max_sources)
        if not 0 < self.overlap <= 1 or min(counts) < 1:
            raise ValueError(
                f"expected overlap in (0, 1] and limits >= 1, got {self.overlap!r} and {counts!r}"
            )

    def write(
        self, trajectories: Sequence[Trajectory], bank: Sequence[MemoryEntry]
    ) -> list[MemoryEntry]:
        """New entries and new versions, ordered by id; entries of the bank that stay are not repeated."""
        written: list[MemoryEntry] = []
        by_agent: dict[str, list[Solved]] = defaultdict(list)
        for trajectory in sorted(trajectories, key=lambda trajectory: trajectory.id):
            reduced = solved(trajectory)
            if reduced is not None and content_words(reduced.cue):
                by_agent[trajectory.agent].append(reduced)
        for agent, reduced in sorted(by_agent.items()):
            newest = _newest([entry for entry in bank if entry.scope == agent])
            for family in self._families(reduced, newest):
                entry = self._entry(family, agent)
                if entry is not None:
                    written.append(entry)
        return sorted(written, key=lambda entry: entry.id)

    def _families(self, members: Sequence[Solved], bank: Sequence[MemoryEntry]) -> list[Family]:
        families = [
            Family(telling_words(cue), entry) for entry in bank for cue in entry.cue.split(CUES)
        ]
        for member in sorted(members, key=_simplest_first):
            words = telling_words(member.cue)
            shares = [len(f.words & words) / len(f.words | words) for f in families]
            best = max(shares, default=0.0)
            if best < self.overlap:
                families.append(Family(words, None, [member]))
            else:
                families[shares.index(best)].members.append(member)
        joined: dict[frozenset[str], Family] = {}
        for family in families:
            joined.setdefault(family.procedures, Family(family.words, family.entry)).members.extend(
                family.members
            )
        return [family for family in joined.values() if family.members]

    def _entry(self, family: Family, agent: str) -> MemoryEntry | None:
        old = family.entry
        members = sorted(family.members, key=lambda member: member.trajectory_id)
        sources = list(
            dict.fromkeys([*(old.provenance if old else ()), *(m.trajectory_id for m in members)])
        )
        sources = tuple(sources[: self.max_sources])
        used = [member for member in members if member.trajectory_id in sources]
        if not used:
            return None
        particulars = frozenset[str]().union(*(member.particulars for member in used))
        content = self._content(used, old.content.split(OR) if old else [], particulars)
        cues = [*(old.cue.split(CUES) if old else ()), *_common([member.cue for member in used])]
        cue = CUES.join(list(dict.fromkeys(cues))[: self.max_cues])
        if leaks(content, particulars) or leaks(cue, particulars):
            return None
        lesson = any(m.corrected for m in used) or (old is not None and old.kind == "lesson")
        config = digest(dataclasses.asdict(self))
        lineage = Lineage(sources, "memory/lessons", version_of(self), "rule", config)
        if old is None:
            return MemoryEntry(
                id=digest({"scope": agent, "cue": cue, "content": content}),
                version=1,
                kind="lesson" if lesson else "workflow",
                cue=cue,
                content=content,
                provenance=sources,
                scope=agent,
                lineage=lineage,
            )
        if (old.content, old.cue, old.provenance) == (content, cue, sources):
            return None
        fresh = replace(old, version=old.version + 1, cue=cue, content=content, provenance=sources)
        fresh = replace(fresh, kind="lesson" if lesson else old.kind, lineage=lineage)
        return fresh if content == old.content else replace(fresh, uses=0, successes=0)

    def _content(
        self, members: Sequence[Solved], older: Sequence[str], particulars: frozenset[str]
    ) -> str:
        conditions = _conditions(members, particulars)
        procedures = _common([member.procedure for member in members])
        tonight = [procedure + conditions.get(procedure, "") for procedure in procedures]
        texts: list[str] = []
        for start in dict.fromkeys(map(_start, [*tonight, *older])):
            known = [text for text in older if _start(text) == start]
            holds = not leaks(OR.join(known), particulars) and _fits(known, members)
            fresh = [text for text in tonight if _start(text) == start]
            texts += _settled(fresh, known, holds)
        return OR.join(texts[: self.max_procedures])


def _simplest_first(member: Solved) -> tuple[int, str, str]:
    return len(telling_words(member.cue)), member.cue, member.trajectory_id


def _newest(entries: Sequence[MemoryEntry]) -> list[MemoryEntry]:
    newest: dict[str, MemoryEntry] = {}
    for entry in sorted(entries, key=lambda entry: entry.version):
        newest[entry.id] = entry
    return [newest[id] for id in sorted(newest)]


def _common(values: Sequence[str]) -> list[str]:
    """Distinct values, most frequent first."""
    counts = Counter(values)
    return sorted(counts, key=lambda value: (-counts[value], len(value), value))


def _conditions(members: Sequence[Solved], particulars: frozenset[str]) -> dict[str, str]:
    """Procedure -> the condition that tells it apart from those that begin alike, where the last result they share has one."""
    begun: dict[str, dict[str, list[Solved]]] = defaultdict(lambda: defaultdict(list))
    for member in members:
        begun[member.steps[0]][member.procedure].append(member)
    found: dict[str, str] = {}
    for procedures in begun.values():
        if len(procedures) > 1 and min(map(len, procedures.values())) > 1:
            last = len(_shared([procedure.split(THEN) for procedure in procedures])) - 1
            groups = [
                [member.results[last] for member in group if last < len(member.results)]
                for group in procedures.values()
            ]
            said = _words(groups) or _limits(groups, particulars)
            found |= {name: f" [if {text}]" for name, text in zip(procedures, said, strict=False)}
    return found


def _shared(paths: Sequence[Sequence[str]]) -> list[str]:
    """The steps with which all begin."""
    alike = takewhile(lambda some: len(set(some)) == 1, zip(*paths, strict=False))
    return [steps[0] for steps in alike]


def _words(groups: Sequence[Sequence[Result]]) -> list[str]:
    """`field is word` by group, where a field has one word in each and another in every other."""
    if not all(groups):
        return []
    shared = [frozenset.intersection(*(result.words for result in group)) for group in groups]
    for name in sorted(set.intersection(*({own for own, _ in words} for words in shared))):
        words = [next(word for own, word in sorted(some) if own == name) for some in shared]
        if len(set(words)) == len(words):
            return [f"{name} is {word}" for word in words]
    return []


def _limits(groups: Sequence[Sequence[Result]], particulars: frozenset[str]) -> list[str]:
    """`field is under n` and `field is n or more`, where a number divides two groups and chance hardly would.

    A field without meaning divides k of n conversations from the others with probability 2 / C(n, k).
    """
    if len(groups) != 2 or not all(groups):
        return []
    tables = [[result.figures for result in group] for group in groups]
    names = sorted(set.intersection(*(set(row) for table in tables for row in table)))
    num = sum(map(len, groups))
    if 2 * len(names) > MAX_CHANCE * math.comb(num, len(groups[0])):
        return []
    for name in names:
        first, second = ([row[name] for row in table] for table in tables)
        for low, high, lower_first in ((first, second, True), (second, first, False)):
            limit = _roundest(max(low), min(high), particulars)
            if limit is not None:
                said = [f"{name} is {UNDER}{limit}", f"{name} is {limit}{OR_MORE}"]
                return said if lower_first else said[::-1]
    return []


def _start(text: str) -> str:
    return _bare(text).split(THEN)[0]


def _bare(text: str) -> str:
    return CONDITION.sub("", text)


def _settled(fresh: Sequence[str], known: Sequence[str], known_holds: bool) -> list[str]:
    """What a lesson says of one beginning, from tonight's procedures and those of the bank.

    One procedure stands alone; several stand when all have a condition, and all conditions come from one night. What
    is left ends where the procedures part: a guess would be copied.
    """
    now = {_bare(text) for text in fresh}
    before = {_bare(text) for text in known if not text.endswith(DEPENDS)}
    if not fresh:
        return list(known)
    if len(fresh) > 1 and all(map(CONDITION.search, fresh)) and before <= now:
        return list(fresh)
    if len(known) > 1 and now <= before and known_holds:
        return list(known)
    if len(now) == 1 and before <= now and len(known) == len(before):
        return list(fresh)
    paths = [_bare(text).split(THEN) for text in (*fresh, *known)]
    return [THEN.join([*_shared(paths), DEPENDS])]


def _fits(known: Sequence[str], members: Sequence[Solved]) -> bool:
    """Whether conditions that an earlier night found hold in every conversation of tonight that took such a procedure."""
    conditions = {_bare(text): CONDITION.search(text) for text in known}
    last = len(_shared([procedure.split(THEN) for procedure in conditions])) - 1
    for member in members:
        condition = conditions.get(member.procedure)
        if condition is not None and (
            last >= len(member.results) or not _is_met(condition, member.results[last])
        ):
            return False
    return True


def _is_met(condition: re.Match[str], result: Result) -> bool:
    name, _, said = condition["said"].partition(" is ")
    if said.startswith(UNDER):
        return result.figures.get(name, math.inf) < float(said.removeprefix(UNDER))
    if said.endswith(OR_MORE):
        return result.figures.get(name, -math.inf) >= float(said.removesuffix(OR_MORE))
    return (name, said) in result.words


def _roundest(low: float, high: float, taken: frozenset[str]) -> str | None:
    """The number above `low` and at most `high` with the fewest digits that is nobody's own; of several the middle one."""
    middle = (low + high) / 2
    numbers = {float(text) for text in taken if NUMBER.fullmatch(text)}
    for exponent in range(11, -5, -1):
        step = 10.0**exponent
        first = math.floor(low / step) + 1
        last = min(math.floor(high / step), first + 99)
        limits = [float(f"{n * step:.12g}") for n in range(first, last + 1)]
        free = [n for n in limits if low < n <= high and n not in numbers]
        if free:
            return f"{min(free, key=lambda n: abs(n - middle)):.12g}"
    return None
