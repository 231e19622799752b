"""A first reading of a strategy's source: clear complaints before anything runs.

This is courtesy, not safety: the walls are in `_sandbox_child.py`. Refused are imports outside the list, names that
reach past the language (`eval`, `open`, `getattr`, ...), every attribute that starts with an underscore, more than 800
lines, and a module without `curate(corpus, ctx)`.
"""

import ast
from collections.abc import Iterator

from components.curation._sandbox_child import ALLOWED_MODULES, REFUSED_NAMES
from components.errors import UnsafeStrategy

MAX_LINES = 800


def lint(source: str) -> ast.Module:
    """The parsed source.

    Raises:
        UnsafeStrategy: naming the first five complaints with their lines.
    """
    num_lines = len(source.splitlines())
    if num_lines > MAX_LINES:
        raise UnsafeStrategy(
            f"the strategy has {num_lines} lines; at most {MAX_LINES} are accepted"
        )
    try:
        tree = ast.parse(source, "<strategy>")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnsafeStrategy(f"the strategy is not valid Python: {error}") from error
    complaints = list(_complaints(tree))
    if complaints:
        shown = "; ".join(complaints[:5])
        more = f"; and {len(complaints) - 5} more" if len(complaints) > 5 else ""
        raise UnsafeStrategy(f"the strategy was refused before running: {shown}{more}")
    return tree


def _complaints(tree: ast.Module) -> Iterator[str]:
    if not any(_is_curate(node) for node in tree.body):
        yield "no function `curate(corpus, ctx)` at the top level"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _import_complaint(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            yield from _import_complaint("." * node.level + (node.module or ""), node.lineno)
        elif (isinstance(node, ast.Name) and node.id in REFUSED_NAMES) or (
            isinstance(node, ast.Name) and node.id.startswith("__")
        ):
            yield f"line {node.lineno}: {node.id!r} is not available"
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            yield f"line {node.lineno}: attribute {node.attr!r} is private"
        elif isinstance(node, ast.AsyncFunctionDef):
            yield f"line {node.lineno}: async functions are not run"


def _is_curate(node: ast.stmt) -> bool:
    if not (isinstance(node, ast.FunctionDef) and node.name == "curate"):
        return False
    return [argument.arg for argument in node.args.args] == ["corpus", "ctx"]


def _import_complaint(name: str, line: int) -> Iterator[str]:
    if name.split(".")[0] not in ALLOWED_MODULES:
        yield f"line {line}: cannot import {name!r}; allowed: {', '.join(ALLOWED_MODULES)}"
