"""Edits the source of curation strategies: adds operators to their code, as text, and shows the difference.

A strategy in pipeline form has a `curate` that makes a plan, calls operators on it, one statement each, and returns:

    def curate(corpus, ctx):
        plan = start(corpus, ctx)
        from_corrections(plan)
        ...
        return finish(plan)

An edit puts calls into that body and the functions they need above it, copied from the library (`_operators.py`) or
made for the failure at hand (`concerns`). What stands in the source stays as it is, comments included. Operators are
typed: a step with a missing argument or one of another type is a `ConfigError`.
"""

import ast
import difflib
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from components.curation._lint import lint
from components.errors import ConfigError
from components.serial import digest

_LIBRARY = Path(__file__).with_name("_operators.py")


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a strategy, named as an argument."""

    name: str
    source: str = ""
    """Its text; empty for a function of the library."""


Argument = Function | str | int | float

OPERATORS: dict[str, tuple[type, ...]] = {
    "from_corrections": (),
    "from_successes": (),
    "drop_trajectories_if": (Function, str),
    "drop_targets_if": (Function, str),
    "keep_if": (Function, str),
    "drop_if": (Function, str, int),
    "dedupe": (Function,),
    "cap_per_mode": (int,),
    "segment_around": (Function, int),
    "truncate_observation": (Function, int),
    "contrast_pair": (Function,),
    "reweight": (Function, float),
    "practise": (),
    "to_memory": (Function,),
}
"""Operator -> types of its arguments after the plan."""


@dataclass(frozen=True, slots=True)
class Step:
    """One statement of a pipeline."""

    operator: str
    arguments: tuple[Argument, ...] = ()

    def __post_init__(self) -> None:
        if self.operator not in OPERATORS:
            raise ConfigError(
                f"no operator named {self.operator!r}; available: {', '.join(sorted(OPERATORS))}"
            )
        expected, found = OPERATORS[self.operator], tuple(type(item) for item in self.arguments)
        if found != expected:
            raise ConfigError(
                f"operator {self.operator!r} takes ({', '.join(kind.__name__ for kind in expected)}), "
                f"got ({', '.join(kind.__name__ for kind in found)})"
            )

    @property
    def text(self) -> str:
        shown = [item.name if isinstance(item, Function) else repr(item) for item in self.arguments]
        return f"{self.operator}({', '.join(['plan', *shown])})"

    @property
    def functions(self) -> tuple[Function, ...]:
        """All functions that the statement names."""
        named = [item for item in self.arguments if isinstance(item, Function)]
        return (Function(self.operator), *named)


def concerns(kind: str, tool: str | None) -> Function:
    """A test for the examples whose failure case is of this kind and tool.

    Both come from logs, so they enter the source as literals and the name only as letters.
    """
    words = re.sub(r"[^a-z0-9]+", "_", f"{kind} of {tool}" if tool else kind, flags=re.I).strip("_")
    name = f"concerns_{words.lower()[:40]}_{digest([kind, tool])[:6]}"
    source = (
        f"def {name}(item):\n"
        '    """The failure that this strategy was rewritten for."""\n'
        '    case = item["case"]\n'
        f'    return case is not None and case["kind"] == {kind!r} and case["tool"] == {tool!r}\n'
    )
    return Function(name, source)


def compose(title: str, steps: Sequence[Step]) -> str:
    """The source of a strategy that does these steps."""
    frame = (
        f'"""{title}"""\n\nimport hashlib\nimport json\n\n\n'
        "def curate(corpus, ctx):\n    plan = start(corpus, ctx)\n    return finish(plan)\n"
    )
    wanted = (Function("start"), Function("finish"))
    source = insert(_with_functions(frame, wanted), steps)
    assert source is not None, "a composed strategy is in pipeline form"
    return source


def insert(source: str, steps: Sequence[Step], before: str | None = None) -> str | None:
    """The source with these steps put before the first call of an operator, or before the end.

    Steps that it already does are left out. None when the source is not in pipeline form, or does all steps already.
    """
    body = _pipeline(lint(source))
    if body is None:
        return None
    present = {ast.unparse(statement) for statement in body}
    missing = [step for step in steps if ast.unparse(ast.parse(step.text)) not in present]
    if not missing:
        return None
    anchor = next((item for item in body if before and _operator_of(item) == before), body[-1])
    lines = source.splitlines()
    indent = " " * anchor.col_offset
    place = anchor.lineno - 1
    lines[place:place] = [indent + step.text for step in missing]
    functions = [function for step in missing for function in step.functions]
    edited = _with_functions("\n".join(lines) + "\n", functions)
    lint(edited)
    return edited


def difference(old: str, new: str) -> str:
    """Unified diff of two strategies."""
    names = (f"strategy {digest(old)[:12]}", f"strategy {digest(new)[:12]}")
    return "".join(difflib.unified_diff(old.splitlines(True), new.splitlines(True), *names))


def operators_of(source: str) -> tuple[str, ...]:
    """Operators that a strategy calls, in order; empty when it is not in pipeline form."""
    named = [_operator_of(statement) for statement in _pipeline(lint(source)) or ()]
    return tuple(name for name in named if name in OPERATORS)


def _pipeline(tree: ast.Module) -> list[ast.stmt] | None:
    """The statements of `curate`, or None when the source is not in pipeline form."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "curate":
            body = node.body[1:] if ast.get_docstring(node) else node.body
            ends = ("plan = start(corpus, ctx)", "return finish(plan)")
            if body and (ast.unparse(body[0]), ast.unparse(body[-1])) == ends:
                return body
    return None


def _operator_of(statement: ast.stmt) -> str | None:
    value = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return value.func.id
    return None


@functools.cache
def _library() -> dict[str, str]:
    """Function name -> text, in file order."""
    text = _LIBRARY.read_text(encoding="utf-8")
    return {
        node.name: f"{ast.get_source_segment(text, node)}\n"
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef)
    }


def _with_functions(source: str, wanted: Sequence[Function]) -> str:
    """The source with these functions and all that they call, put above `curate`."""
    tree = ast.parse(source)
    present = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    texts: dict[str, str] = {}
    queue = list(wanted)
    while queue:
        function = queue.pop(0)
        if function.name in present or function.name in texts:
            continue
        text = function.source or _library()[function.name]
        texts[function.name] = text
        named = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
        queue.extend(Function(name) for name in sorted(named & _library().keys()))
    curate = next(
        item for item in tree.body if isinstance(item, ast.FunctionDef) and item.name == "curate"
    )
    order = [*_library(), *texts]
    block = "".join(f"{texts[name]}\n\n" for name in sorted(texts, key=order.index))
    lines = source.splitlines(keepends=True)
    return "".join(lines[: curate.lineno - 1]) + block + "".join(lines[curate.lineno - 1 :])
