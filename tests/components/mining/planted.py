"""Failure summaries with known modes: tools times faults, several wordings each, filler, particulars and noise.

Two sets of wordings. The bounds of the mode finder were chosen on `SEEN` and confirmed on `UNSEEN`; no rule knows a word of
either.
"""

from random import Random

from components.records import FailureCase, Lineage

TOOLS = (
    "get_order",
    "cancel_order",
    "refund_payment",
    "change_address",
    "send_voucher",
    "track_parcel",
    "book_return",
    "escalate_case",
)
SEEN = {
    "argument": (
        "The agent called {tool} with the wrong argument",
        "{tool} was given an argument that does not match the request",
        "Incorrect parameter passed to {tool}",
    ),
    "timeout": (
        "{tool} timed out and no result came back",
        "The call to {tool} never returned because of a timeout",
        "No answer from {tool} within the time limit",
    ),
    "omitted": (
        "The agent never called {tool} although it was needed",
        "A required call of {tool} is missing",
        "{tool} was skipped, the agent answered without calling it",
    ),
    "loop": (
        "The agent repeated the same {tool} call again and again",
        "{tool} was called many times in a loop",
        "Endless repetition of identical {tool} calls",
    ),
    "forbidden": (
        "Policy does not allow {tool} here and the agent used it anyway",
        "The use of {tool} broke the company policy",
        "{tool} was not permitted for this customer, a policy violation",
    ),
}
UNSEEN = {
    "format": (
        "The arguments of {tool} were not valid JSON",
        "{tool} received malformed JSON and could not parse it",
        "Broken JSON syntax in the {tool} call",
    ),
    "access": (
        "{tool} answered that access is denied",
        "Permission error returned by {tool}, access was denied",
        "The agent lacks access rights for {tool}",
    ),
    "early": (
        "The agent ended the conversation before {tool} had finished",
        "Conversation closed too early, {tool} was still unfinished",
        "It stopped the conversation while {tool} was not finished",
    ),
    "twice": (
        "{tool} was executed twice for one request",
        "Duplicate execution of {tool}",
        "The agent executed {tool} a second time by mistake",
    ),
    "ignored": (
        "The agent ignored what {tool} returned and invented a value",
        "The reply contradicts the result returned by {tool}",
        "The answer does not use the result of {tool} and states an invented value",
    ),
}
FILLER = (
    "The customer {name} was polite.",
    "Order {id} had been placed last week.",
    "The amount was ${amount}.",
    "{name} wrote on a Sunday evening.",
    "The chat lasted {number} minutes.",
    "A second ticket {id} exists.",
)
NAMES = ("Ann Lee", "Bob Hill", "Carla Diaz", "Deniz Aydin", "Eve Stone", "Farid Noor")
SUBJECTS = (
    "The printer",
    "A window",
    "His bicycle",
    "The garden",
    "That song",
    "Our train",
    "Her coat",
    "The soup",
)
VERBS = (
    "smelled of",
    "was sold to",
    "reminded everyone of",
    "stood near",
    "was painted like",
    "turned into",
)
OBJECTS = (
    "old bread",
    "a lighthouse",
    "summer rain",
    "the neighbours",
    "cold iron",
    "blue paper",
    "a brass band",
)


def planted(
    num: int, faults: dict[str, tuple[str, ...]], rng: Random, noise_rate: float = 0.2
) -> tuple[list[FailureCase], list[str | None]]:
    """Cases whose signature says nothing, and the true mode of each (None for noise)."""
    modes = [(tool, fault) for tool in TOOLS for fault in faults]
    rng.shuffle(modes)
    weights = [1.0 / (rank + 8) for rank in range(len(modes))]
    cases: list[FailureCase] = []
    truth: list[str | None] = []
    for number in range(num):
        if rng.random() < noise_rate:
            text, mode = _noise(rng), None
        else:
            tool, fault = rng.choices(modes, weights)[0]
            text, mode = _summary(tool, rng.choice(faults[fault]), rng), f"{tool}|{fault}"
        lineage = Lineage((), "test", "1", "rule", "")
        case = FailureCase(
            f"case-{number:06d}", f"t{number}", 0, "model", "unknown||", text, (), lineage
        )
        cases.append(case)
        truth.append(mode)
    return cases, truth


def _summary(tool: str, wording: str, rng: Random) -> str:
    spelling = tool if rng.random() < 0.5 else tool.replace("_", " ")
    sentences = [wording.format(tool=spelling) + "."]
    for filler in rng.sample(FILLER, rng.randrange(3)):
        filled = filler.format(
            name=rng.choice(NAMES),
            id=f"W{rng.randrange(10_000)}",
            amount=rng.randrange(10, 900),
            number=rng.randrange(2, 50),
        )
        sentences.insert(rng.randrange(len(sentences) + 1), filled)
    return " ".join(sentences)


def _noise(rng: Random) -> str:
    one = f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)}"
    two = f"{rng.choice(SUBJECTS).lower()} {rng.choice(VERBS)} {rng.choice(OBJECTS)}"
    three = f"{rng.choice(SUBJECTS).lower()} {rng.choice(VERBS)} {rng.choice(OBJECTS)}"
    return f"{one}, {two} and {three}."


def recalled(truth: list[str | None], found: list[str | None]) -> int:
    """Planted modes of which one found mode holds at least half, and which make up at least half of that found mode."""
    count = 0
    for mode in {mode for mode in truth if mode}:
        own = [place for place, name in enumerate(truth) if name == mode]
        held = [found[place] for place in own if found[place]]
        best = max(set(held), key=lambda name: (held.count(name), name or ""), default=None)
        shared = held.count(best)
        count += best is not None and 2 * shared >= len(own) and 2 * shared >= found.count(best)
    return count
