"""Plug-ins are files: `components/<kind>/<name>.py` holds one frozen dataclass marked `@plugin`.

The file name is the plug-in's name, its fields are its options. A name with a colon, `package.module:Class`, loads a
plug-in from any importable package, so users add environments and readers without touching this tree. Looking up
imports just the one file; listing reads the files as text and imports nothing.
"""

import ast
import dataclasses
import difflib
import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, dataclass_transform, get_type_hints

from pydantic import TypeAdapter, ValidationError

from components.errors import ConfigError, UnknownPlugin
from components.serial import digest

HOME = Path(__file__).parent
PLUGIN_MARK = "__nightshift_plugin__"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """What a listing shows of a plug-in without importing it."""

    kind: str
    name: str
    summary: str
    """First line of the module docstring."""
    source: str
    """The `Source:` line, or empty."""


@dataclass_transform(frozen_default=True)
def plugin(cls: type[T]) -> type[T]:
    """Mark a class as the plug-in of its file; makes it a frozen dataclass."""
    made = dataclass(frozen=True)(cls)
    setattr(made, PLUGIN_MARK, True)
    return made


def kinds() -> list[str]:
    """Packages that may hold plug-ins."""
    return sorted(path.parent.name for path in HOME.glob("*/__init__.py"))


def names(kind: str) -> list[str]:
    """Names of all plug-ins of a kind, without importing them."""
    return sorted(info.name for info in describe(kind))


SOURCE = re.compile(r"^Source: (.*?)(?=^[A-Z][A-Za-z -]*: |^\s*$|\Z)", re.MULTILINE | re.DOTALL)
"""The source named in a docstring, up to the next heading or empty line."""


def describe(kind: str) -> Iterator[PluginInfo]:
    """Plug-ins of a kind, read from their files as text."""
    for path in sorted((HOME / kind).glob("[!_]*.py")):
        tree = ast.parse(path.read_text())
        if not any(_is_plugin_class(node) for node in tree.body):
            continue
        doc = ast.get_docstring(tree) or ""
        source = SOURCE.search(doc)
        said = " ".join(source[1].split()) if source else ""
        yield PluginInfo(kind, path.stem, doc.split("\n")[0], said)


def _is_plugin_class(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef) and any(
        isinstance(mark, ast.Name) and mark.id == "plugin" for mark in node.decorator_list
    )


def find(kind: str, name: str) -> type[Any]:
    """The class of a plug-in.

    Raises:
        UnknownPlugin: no such file, or the file marks no class with `@plugin`.
    """
    if ":" in name:
        return _foreign(kind, name)
    known = names(kind)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UnknownPlugin(
            f"no {kind} plug-in named {name!r}.{hint} Available: {', '.join(known) or 'none'}"
        )
    module = importlib.import_module(f"components.{kind}.{name}")
    return next(
        value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__ and _marked(value)
    )


def _marked(cls: type[Any]) -> bool:
    return PLUGIN_MARK in vars(cls)


def _foreign(kind: str, name: str) -> type[Any]:
    module_name, _, class_name = name.partition(":")
    try:
        cls = vars(importlib.import_module(module_name))[class_name]
    except (ImportError, KeyError) as error:
        raise UnknownPlugin(
            f"no {kind} plug-in {name!r}: expected an importable `package.module:Class`, got {error!r}"
        ) from error
    if not (isinstance(cls, type) and _marked(cls)):
        raise UnknownPlugin(f"{name!r} is not a {kind} plug-in: decorate the class with @plugin")
    return cls


def make(
    kind: str,
    name: str,
    options: dict[str, Any] | None = None,
    known: Mapping[str, Any] | None = None,
) -> Any:
    """Build a plug-in from its name and its options, checking both.

    `known`: what the caller's other settings already say; a plug-in that has such an option takes it as its default.

    Raises:
        UnknownPlugin: no such plug-in.
        ConfigError: an option that it does not have, or a value of another type.
    """
    cls = find(kind, name)
    accepted = [field.name for field in dataclasses.fields(cls)]
    given = {key: value for key, value in (known or {}).items() if key in accepted}
    given |= options or {}
    for key in given:
        if key not in accepted:
            close = difflib.get_close_matches(key, accepted, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ConfigError(
                f"{kind} plug-in {name!r} has no option {key!r}.{hint} "
                f"Accepted: {', '.join(accepted) or 'none'}"
            )
    hints = get_type_hints(cls)
    try:
        checked = {
            key: TypeAdapter(hints[key]).validate_python(value) for key, value in given.items()
        }
        return cls(**checked)
    except (ValidationError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{kind} plug-in {name!r} refuses its options {given!r}: {error}"
        ) from error


def version_of(plug_in: Any) -> str:
    """Version of a plug-in: the digest of its file and of the shared files (`_*.py`) beside it, so an edit shows."""
    module = importlib.import_module(type(plug_in).__module__)
    path = Path(module.__file__ or "")
    texts = [each.read_text() for each in (path, *sorted(path.parent.glob("_[!_]*.py")))]
    return digest(texts)[:12]
