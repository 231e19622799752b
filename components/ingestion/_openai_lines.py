"""What one line of OpenAI chat traffic says.

Three kinds: an exchange (request and response), a whole conversation (`messages`), and feedback (the recording proxy's).
Which conversation a line belongs to, in this order:

    1. an id it states: `conversation`, `conversation_id`, `session_id`, `thread_id`, beside or inside the request's metadata
    2. a whole conversation: its `id` with its opening, else its content
    3. an exchange without an answer: itself, since no later request can contain what it never said
    4. any other exchange: its opening (system text, first user message) with the workload it names

Our choice: by 4, two users who open with the same words share a conversation; the longest chain is kept and the rest is
marked as forks. Send an id to avoid this.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import orjson

from components.errors import RecordError
from components.ingestion._chain import Exchange
from components.ingestion._conversation import Answer, altered_at, read_time
from components.ingestion._feedback import FeedbackLine, read_feedback
from components.llm import read_error, read_message, read_stream, read_usage
from components.records import Message
from components.serial import digest

CONVERSATION_KEYS = ("conversation", "conversation_id", "session_id", "thread_id")
WORKLOAD_KEYS = ("agent", "workload_id", "client_id")
FOREIGN_ANSWERS = {"content", "output", "candidates", "completion", "generation"}
TIME_KEYS = ("at", "timestamp", "created_at", "time")

Line = Exchange | FeedbackLine
Number = TypeVar("Number", int, float)


def read_line(payload: Mapping[str, Any], record_id: str, marks: tuple[str, ...] = ()) -> Line:
    """The meaning of a line.

    Raises:
        RecordError: it is none of the three kinds, or a part of it is unreadable.
    """
    try:
        if payload.get("kind") == "feedback" and "nightshift" in payload:
            return read_feedback(record_id, payload.get("feedback") or {}, payload.get("at"))
        if any(key in payload for key in ("request", "response", "response_sse", "choices")):
            return _exchange(payload, record_id, marks)
        if isinstance(payload.get("messages"), list):
            return _whole(payload, record_id, marks)
    except (AttributeError, TypeError, KeyError, ValueError, IndexError) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(f"unreadable line: {error!r}") from error
    raise RecordError(
        f"expected a line with `request`, `messages` or `choices`, got keys {sorted(payload)[:12]}"
    )


def conversation_of(payload: Mapping[str, Any], line: Line, raw: bytes) -> str:
    """The id that joins lines of one conversation."""
    request = payload.get("request")
    metadata = request.get("metadata") if isinstance(request, Mapping) else None
    for place in (payload, metadata):
        if isinstance(place, Mapping):
            for key in CONVERSATION_KEYS:
                if isinstance(place.get(key), str | int) and place[key] != "":
                    return str(place[key])
    if isinstance(line, FeedbackLine):
        raise RecordError("feedback without `conversation`: nothing says what it is about")
    opening = _opening(line.messages)
    if line.is_whole:
        name = payload.get("id")
        return digest(raw)[:32] if name is None else f"{name}-{digest(opening)[:16]}"
    if line.answer is None:
        return digest(raw)[:32]
    workload = [str(payload.get(key)) for key in WORKLOAD_KEYS]
    return digest("\0".join((*workload, opening)))[:32]


def _opening(messages: tuple[Message, ...]) -> str:
    first_user = next((m.text for m in messages if m.role == "user"), "")
    instructions = [m.text for m in messages if m.role in ("system", "developer")]
    return "\0".join((*instructions[:1], first_user))


def _exchange(payload: Mapping[str, Any], record_id: str, marks: tuple[str, ...]) -> Exchange:
    request = _body(payload.get("request", payload if "messages" in payload else {})) or {}
    response = _body(payload.get("response", payload if "choices" in payload else None))
    if response is None:
        response = _body(payload.get("response_sse"))
    if not isinstance(request, Mapping):
        raise RecordError(f"request is {type(request).__name__}, expected an object")
    _refuse_foreign(request, response)
    messages = read_messages(request.get("messages", []), marks, "/request/messages")
    status = payload.get("status", payload.get("http_status"))
    error = payload.get("error") or read_error(response, status if status != 200 else None)
    known = response if isinstance(response, Mapping) else {}
    answer = None if error else _answer(payload, known, marks)
    model, version = known.get("model") or request.get("model"), _version(payload, known)
    return Exchange(
        record_id,
        messages,
        answer,
        error=str(error) if error else None,
        at=_time(payload) or read_time(known.get("created")),
        model=f"{model}@{version}" if model and version else _text(model),
        tools=tuple(tool for tool in request.get("tools") or () if isinstance(tool, dict)),
        metadata=request.get("metadata") if isinstance(request.get("metadata"), dict) else None,
    )


def _refuse_foreign(request: Mapping[str, Any], response: Any) -> None:
    """Other vendors' bodies are not failed chat completions.

    Raises:
        RecordError: there are neither messages nor choices, or the answer is in another vendor's form.
    """
    known = response if isinstance(response, Mapping) else {}
    if "messages" not in request and not known.get("choices"):
        raise RecordError("neither the request has `messages` nor the response `choices`")
    foreign = FOREIGN_ANSWERS & known.keys()
    if foreign and "choices" not in known:
        raise RecordError(
            f"response has {sorted(foreign)} instead of `choices`: another vendor's form"
        )


def _whole(payload: Mapping[str, Any], record_id: str, marks: tuple[str, ...]) -> Exchange:
    messages = read_messages(payload["messages"], marks, "/messages")
    answer = None
    if messages and messages[-1].role == "assistant":
        usage = read_usage(payload.get("usage"))
        answer = Answer(messages[-1], _text(payload.get("finish_reason")), usage)
        messages = messages[:-1]
    metadata = payload.get("metadata")
    return Exchange(
        record_id,
        messages,
        answer,
        at=_time(payload),
        model=_text(payload.get("model")),
        tools=tuple(tool for tool in payload.get("tools") or () if isinstance(tool, dict)),
        metadata=metadata if isinstance(metadata, dict) else None,
        is_whole=True,
    )


def read_messages(raw: Any, marks: tuple[str, ...], pointer: str) -> tuple[Message, ...]:
    """Messages from their wire form; an unreadable one is named by its place."""
    if not isinstance(raw, list):
        raise RecordError(f"messages are {type(raw).__name__}, expected a list")
    found: list[Message] = []
    for place, item in enumerate(raw):
        try:
            found.append(
                read_message(item, altered_at(marks, f"{pointer}/{place}") if marks else ())
            )
        except (RecordError, AttributeError) as error:
            raise RecordError(f"message {place}: {error}") from error
    return tuple(found)


def _body(value: Any) -> Any:
    """A body that was logged as text is JSON or a stream."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith(("data:", "event:", ":")):
        return read_stream(value)
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return {"error": value[:300]}


def _answer(
    payload: Mapping[str, Any], response: Mapping[str, Any], marks: tuple[str, ...]
) -> Answer:
    choices = response["choices"]
    choice = choices[0]
    noticed = altered_at(marks, "/response") if marks else ()
    if len(choices) > 1:
        noticed = (*noticed, f"first of {len(choices)} choices")
    content = (choice.get("logprobs") or {}).get("content")
    logprobs = payload.get("logprobs") or [token["logprob"] for token in content or ()]
    latency = payload.get("latency_s")
    prompt_ids = payload.get("prompt_ids") or response.get("prompt_token_ids")
    completion_ids = payload.get("completion_ids") or choice.get("token_ids")
    if logprobs and completion_ids and len(logprobs) != len(completion_ids):
        noticed = (
            *noticed,
            f"misaligned: {len(completion_ids)} tokens, {len(logprobs)} logprobs",
        )
        prompt_ids = completion_ids = logprobs = None
    return Answer(
        read_message({**choice["message"], "role": "assistant"}, noticed),
        finish_reason=_text(choice.get("finish_reason")),
        usage=read_usage(response.get("usage")),
        latency_s=float(latency) if isinstance(latency, int | float) else None,
        prompt_ids=_all(int, prompt_ids) if prompt_ids else None,
        completion_ids=_all(int, completion_ids) if completion_ids else None,
        logprobs=_all(float, logprobs) if logprobs and completion_ids else None,
        policy_version=_version(payload, response),
    )


def _all(kind: type[Number], values: Iterable[Any]) -> tuple[Number, ...]:
    """The numbers as this kind; converting what is of this kind already would take most of a line's time."""
    given = tuple(values)
    return given if set(map(type, given)) == {kind} else tuple(map(kind, given))


def _version(payload: Mapping[str, Any], response: Mapping[str, Any]) -> str | None:
    return _text(payload.get("policy_version") or response.get("policy_version"))


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _time(payload: Mapping[str, Any]) -> Any:
    return next(
        (time for key in TIME_KEYS if (time := read_time(payload.get(key))) is not None), None
    )
