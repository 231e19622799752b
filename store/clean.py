"""Text that PostgreSQL can hold: no NUL, no half surrogate pair, no NaN.

Each offending character becomes U+FFFD, in keys and values alike; a number that is not finite becomes null. Honest text
about an escape (backslash, `u0000`) is not touched, because values are cleaned before they are serialised.
"""

import json
import math
import re
from dataclasses import is_dataclass
from typing import Any, NamedTuple

from pydantic_core import to_json

from components.errors import RecordError
from components.serial import dump

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
UNSTORABLE = re.compile("[\0\ud800-\udfff]")


class Cleaned(NamedTuple):
    text: str
    """JSON text, keys in their order."""
    altered: bool
    """Whether anything had to be replaced."""


def clean_text(text: str) -> str:
    """The text with what cannot be stored replaced."""
    return UNSTORABLE.sub(REPLACEMENT, text)


def clean_json(value: Any) -> Cleaned:
    """The value, JSON data or a record, as JSON text that PostgreSQL accepts.

    Raises:
        RecordError: the value is nested too deep or is not JSON.
    """
    try:
        data = to_json(value, inf_nan_mode="constants")
    except ValueError:  # half a surrogate pair, or no JSON at all: the slow way tells
        return _clean_slowly(value)
    # A hit may as well be honest text, which the slow way leaves alone.
    if b"\\u0000" in data or b"NaN" in data or b"Infinity" in data:
        return _clean_slowly(value)
    return Cleaned(data.decode(), False)


def _clean_slowly(value: Any) -> Cleaned:
    if is_dataclass(value) and not isinstance(value, type):
        value = dump(value)
    try:
        cleaned, altered = _clean(value)
        text = json.dumps(cleaned, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except RecursionError as error:
        raise RecordError("the record is nested too deep to be stored") from error
    except (TypeError, ValueError) as error:
        raise RecordError(f"the record cannot be stored as JSON: {error}") from error
    return Cleaned(text, altered)


def _clean(value: Any) -> tuple[Any, bool]:
    if isinstance(value, str):
        text = clean_text(value)
        return text, text != value
    if isinstance(value, float) and not math.isfinite(value):
        return None, True
    if isinstance(value, list | tuple):
        pairs = [_clean(item) for item in value]
        return [item for item, _ in pairs], any(altered for _, altered in pairs)
    if isinstance(value, dict):
        return _clean_keys(value)
    return value, False


def _clean_keys(value: dict[Any, Any]) -> tuple[dict[Any, Any], bool]:
    made: dict[Any, Any] = {}
    altered = False
    for key, item in value.items():
        name, key_altered = _clean(key)
        while name in made:  # two keys that differ only in what was replaced are both kept
            name += REPLACEMENT
        made[name], item_altered = _clean(item)
        altered = altered or key_altered or item_altered
    return made, altered
