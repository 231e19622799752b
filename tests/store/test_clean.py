"""What PostgreSQL cannot hold is replaced and reported; honest text is not touched."""

import json

import pytest

from components.errors import RecordError
from store.clean import clean_json, clean_text

BACKSLASH = "\\"


def test_nul_in_key_and_value_is_replaced() -> None:
    cleaned = clean_json({"key\0x": 1, "list": [{"deep": "head\0tail"}]})
    assert cleaned.altered
    assert json.loads(cleaned.text) == {"key\ufffdx": 1, "list": [{"deep": "head\ufffdtail"}]}


def test_text_about_an_escape_stays() -> None:
    """The six characters backslash u 0 0 0 0 are honest text; the fast search for NUL finds them too."""
    value = {"text": f"the escape looks like {BACKSLASH}u0000 in JSON"}
    assert clean_json(value) == (json.dumps(value, separators=(",", ":")), False)


def test_half_pair_is_replaced_and_whole_pair_stays() -> None:
    assert clean_text("caf\udcb2 price") == "caf\ufffd price"
    assert clean_text("cut \ud83d") == "cut \ufffd"
    assert clean_text("\U0001f378") == "\U0001f378"
    assert clean_json(["cut \ud83d"]) == ('["cut \ufffd"]', True)
    assert clean_json(["\U0001f378"]) == ('["\U0001f378"]', False)


def test_numbers_that_are_not_finite_become_null() -> None:
    assert clean_json({"a": float("nan"), "b": None}) == ('{"a":null,"b":null}', True)
    assert clean_json({"a": [float("-inf")], "b": 1.5}) == ('{"a":[null],"b":1.5}', True)
    assert clean_json({"a": None, "b": "NaN"}) == ('{"a":null,"b":"NaN"}', False)


def test_keys_that_become_equal_are_both_kept() -> None:
    cleaned = clean_json({"a\0": 1, "a\ufffd": 2})
    assert json.loads(cleaned.text) == {"a\ufffd": 1, "a\ufffd\ufffd": 2}


def test_order_of_keys_and_long_integers_stay() -> None:
    assert clean_json({"zebra": 2**70, "ant": 1}).text == '{"zebra":1180591620717411303424,"ant":1}'


def test_what_is_no_json_is_refused() -> None:
    deep: list[object] = []
    for _ in range(20_000):
        deep = [deep]
    with pytest.raises(RecordError, match="nested too deep"):
        clean_json(deep)
    with pytest.raises(RecordError, match="cannot be stored as JSON"):
        clean_json({"a": object()})
