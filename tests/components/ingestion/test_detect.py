"""Choosing a reader by content."""

import pytest

from components.errors import RecordError
from components.ingestion.detect import HEAD_BYTES, can_continue, choose

from .logs import REAL_LOGS, jsonl

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (
            jsonl({"nightshift": 1, "kind": "exchange", "request": CHAT, "response": None}),
            "openai_chat",
        ),
        (jsonl({"request": CHAT, "response": {"choices": []}}), "openai_chat"),
        (jsonl(CHAT), "openai_chat"),
        (b'{"messages": [\n {"role": "user", "content": "' + b"x" * HEAD_BYTES, "openai_chat"),
        (b'data: {"choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n', "openai_chat"),
        (jsonl({"resourceSpans": []}), "otlp_json"),
        (b'{\n  "resourceSpans": [', "otlp_json"),
        (b'[{"task_id": 1, "reward": 1.0, "traj": [{"role": "user"', "tau_bench"),
        (b'{"timestamp": "", "info": {"num_trials": 1, "user_info": {', "tau_bench"),
    ],
)
def test_formats(head: bytes, name: str) -> None:
    assert choose(head, "log.dat").format == name


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"hello",
        b"\x00\x01\xff",
        b'{"a": 1}\n',
        jsonl({"request": {"input": 1}, "response": {"output": []}}),
    ],
)
def test_unknown_formats_are_an_error_that_names_the_known_ones(head: bytes) -> None:
    with pytest.raises(RecordError, match=r"'x\.log'.*openai_chat, otlp_json, tau_bench"):
        choose(head, "x.log")


def test_a_pointer_to_a_file_is_no_log() -> None:
    with pytest.raises(RecordError, match="git lfs pull"):
        choose(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "big.jsonl")


def test_only_lines_can_be_continued() -> None:
    assert can_continue(jsonl(CHAT, CHAT))
    assert not can_continue(b'[{"task_id": 1}]')
    assert not can_continue(b'{\n "resourceSpans": []\n}')


FOLDERS = {
    "openai_chat_jsonl": "openai_chat",
    "openai_chat_pairs": "openai_chat",
    "messages_jsonl": "openai_chat",
    "tau2_results": "tau_bench",
    "anthropic_messages_jsonl": None,
    "openai_responses_jsonl": None,
    "gemini_responses_jsonl": None,
    "bedrock_nock": None,
    "claude_code_jsonl": None,
    "openhands_events": None,
    "langfuse_trace_export": None,
}


@pytest.mark.parametrize(("folder", "expected"), FOLDERS.items())
def test_real_folders(folder: str, expected: str | None) -> None:
    """Every file of the formats that are read is recognised, and none of the others is taken for one."""
    files = sorted((REAL_LOGS / folder).glob("*"))
    if not files:
        pytest.skip("the shared log collection is not here")
    for file in files:
        head = file.read_bytes()[:HEAD_BYTES]
        try:
            found = choose(head, file.name).format
        except RecordError:
            found = None
        assert found == expected, file.name
