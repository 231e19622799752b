"""What a signal found: the first wrong turn, who is at fault, and the sentence people read."""

from dataclasses import dataclass

from components.embedding import mask
from components.mining._steps import shorten
from components.records import Evidence, Fault

SENTENCES = {
    "infrastructure": "The model endpoint failed ({detail}).",
    "tool_failure": "{Tool} failed on its own side ({detail}).",
    "wrong_tool": "The agent {detail} where {tool} was needed.",
    "wrong_argument": "The agent called {tool} with a wrong {detail}.",
    "unparsable_action": "The agent's action could not be read ({detail}) where {tool} was needed.",
    "missing_step": "The agent went on without {tool}.",
    "extra_step": "The agent called {tool}, which was not needed.",
    "wrong_reply": "The agent's last reply after {tool} was not right.",
    "disputed_verdict": "The agent did exactly what the operator did after {tool}, yet it was judged a failure.",
    "policy_violation": "The agent broke a rule of the environment with {tool} ({detail}).",
    "malformed_call": "The agent called {tool} with arguments that cannot be read ({detail}).",
    "unanswered_call": "A call of {tool} got no result.",
    "repeated_call": "The agent repeated the same call of {tool} in vain.",
    "tool_error": "{Tool} refused the agent's call ({detail}) and the agent did not recover.",
    "edited": "A person changed what the agent proposed with {tool} ({detail}).",
    "rejected": "A person refused what the agent did with {tool} ({detail}).",
    "cut_off": "The agent was cut off after {tool} ({detail}).",
    "disputed_outcome": "The judges of the outcome after {tool} disagree ({detail}).",
    "wrong_outcome": "The outcome after {tool} was judged a failure.",
}
"""One sentence per kind. `{tool}` is the second field of the signature, `{detail}` the third."""


@dataclass(frozen=True, slots=True)
class Finding:
    kind: str
    fault: Fault
    turn: int | None
    tool: str | None = None
    detail: str = ""
    quotes: tuple[tuple[int | None, str], ...] = ()
    """(turn, text) of what shows it, the wrong act first."""

    @property
    def signature(self) -> str:
        fields = (self.kind, self.tool or "", self.detail)
        return "|".join(field.replace("|", "/") for field in fields)

    @property
    def summary(self) -> str:
        """A sentence without particulars, so that equal failures read alike."""
        tool = self.tool or "a reply"
        words = {"tool": tool, "Tool": tool[0].upper() + tool[1:] if not self.tool else tool}
        sentence = SENTENCES[self.kind].format(**words, detail=self.detail or "no detail")
        return mask(sentence)

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        return tuple(Evidence(turn, shorten(text)) for turn, text in self.quotes if text.strip())
