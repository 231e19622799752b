"""The lines that the recording proxy writes, and what it takes out of answers before they are passed on."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from components.capture.sink import AGENT
from components.errors import RecordError
from components.llm import read_message
from components.records import Feedback
from components.serial import load

FEEDBACK_FIELDS = frozenset(field.name for field in fields(Feedback)) - {"occurred_at"}


@dataclass(frozen=True, slots=True)
class Call:
    """One request of an agent."""

    agent: str
    conversation: str | None
    at: datetime
    started: float
    """Clock reading for the latency."""
    body: dict[str, Any]
    raw: bytes
    added: frozenset[str]
    """Request fields that the proxy adds."""
    repeat_key: str | None
    """Equal for repetitions of one request; None when the agent gave no idempotency key."""

    @property
    def asked(self) -> dict[str, Any]:
        """The request as it goes upstream."""
        return {**self.body, **dict.fromkeys(self.added, True)}

    def head(self, kind: str) -> dict[str, Any]:
        return line_head(kind, self.agent, self.conversation, self.at)


def line_head(kind: str, agent: str, conversation: str | None, at: datetime) -> dict[str, Any]:
    return {
        "nightshift": 1,
        "kind": kind,
        "agent": agent,
        "conversation": conversation,
        "at": at.isoformat(),
    }


def exchange_line(
    call: Call, status: int, latency_s: float, body: Any, problem: str | None
) -> dict[str, Any]:
    """What is written about a call and its answer. `problem`: why there is no answer, or None."""
    kept, tokens = body, {}
    if isinstance(body, dict):
        kept = strip_tokens(body, call.added | {"return_token_ids"})
        tokens = _tokens(body)
    line = {
        **call.head("exchange"),
        "request": call.body,
        "response": kept,
        "status": status,
        "latency_s": latency_s,
    }
    return {**line, "error": problem} if problem is not None else {**line, **tokens}


def _tokens(body: Mapping[str, Any]) -> dict[str, Any]:
    choices = body.get("choices") or [{}]
    choice = choices[0] if isinstance(choices[0], dict) else {}
    content = (choice.get("logprobs") or {}).get("content") or []
    found = {
        "prompt_ids": body.get("prompt_token_ids"),
        "completion_ids": choice.get("token_ids"),
        "logprobs": [token["logprob"] for token in content] if choice.get("token_ids") else None,
        "policy_version": body.get("policy_version"),
    }
    return {key: value for key, value in found.items() if value}


def strip_tokens(body: Any, added: frozenset[str]) -> Any:
    """An answer or a chunk of one, without what only the proxy asked for."""
    if not added or not isinstance(body, dict):
        return body
    stripped = dict(body)
    if "return_token_ids" in added:
        stripped.pop("prompt_token_ids", None)
    if isinstance(body.get("choices"), list):
        stripped["choices"] = [_strip_choice(choice, added) for choice in body["choices"]]
    return stripped


def _strip_choice(choice: Any, added: frozenset[str]) -> Any:
    if not isinstance(choice, dict):
        return choice
    taken = {"token_ids"} if "return_token_ids" in added else set()
    if "logprobs" in added:
        taken.add("logprobs")
    return {key: value for key, value in choice.items() if key not in taken}


def feedback_line(
    body: Mapping[str, Any], agent: str, conversation: str | None, at: datetime
) -> dict[str, Any]:
    """What is written about a piece of feedback.

    Raises:
        RecordError: it says nothing about a conversation, or is not feedback.
    """
    feedback = body.get("feedback")
    if not isinstance(agent, str) or not AGENT.fullmatch(agent):
        raise RecordError(f"agent {agent!r}: use up to 64 letters, digits, dots, dashes")
    if not conversation or not isinstance(conversation, str):
        raise RecordError(
            "feedback needs `conversation`, in the body or as x-nightshift-conversation"
        )
    if not isinstance(feedback, dict):
        raise RecordError(f"`feedback` is {type(feedback).__name__}, expected an object")
    unknown = sorted(set(feedback) - FEEDBACK_FIELDS - {"messages"})
    if unknown:
        expected = sorted(FEEDBACK_FIELDS | {"messages"})
        raise RecordError(f"feedback has unknown fields {unknown}, expected some of {expected}")
    load(Feedback, {key: value for key, value in feedback.items() if key != "messages"})
    messages = feedback.get("messages") or []
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise RecordError("feedback messages must be a list of messages")
    for message in messages:
        read_message(message)
    return {**line_head("feedback", agent, conversation, at), "feedback": dict(feedback)}
