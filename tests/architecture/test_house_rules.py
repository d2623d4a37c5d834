"""The rules of the house that a machine can check: sizes, names, SQL, promises of the text."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "outbox_connectors": ROOT / "connectors" / "outbox_connectors",
    "outbox_pipeline": ROOT / "pipeline" / "outbox_pipeline",
    "outbox_consumers": ROOT / "consumers" / "outbox_consumers",
}
FORBIDDEN_NAMES = {"util", "utils", "common", "helpers", "manager", "misc"}


def tracked(*patterns: str) -> list[Path]:
    """List what git tracks or would track, so that build products never count."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in sorted(set(names.splitlines())) if (ROOT / name).is_file()]


PYTHON = tracked("*.py")


@pytest.mark.parametrize("path", PYTHON, ids=lambda p: str(p.relative_to(ROOT)))
def test_file_and_functions_are_short(path: Path) -> None:
    text = path.read_text("utf-8")
    assert text.count("\n") <= 600, "split the file: it holds two ideas"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= 60, f"{node.name} has {length} lines"


def test_names_say_what_is_inside() -> None:
    vague = [p for p in PYTHON if p.stem in FORBIDDEN_NAMES or p.parent.name in FORBIDDEN_NAMES]
    assert vague == []


def _loaded_names(package: Path) -> set[str]:
    """Collect every literal name that the package's code asks its SQL loader for."""
    names: set[str] = set()
    for path in package.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not (isinstance(call, ast.Call) and call.args):
                continue
            function, first = call.func, call.args[0]
            named = isinstance(function, ast.Attribute) and function.attr in {"get", "compose"}
            owner = function.value if isinstance(function, ast.Attribute) else None
            if named and isinstance(owner, ast.Name) and owner.id in {"sql", "statements"}:
                values = [n.value for n in ast.walk(first) if isinstance(n, ast.Constant)]
                names |= {value for value in values if isinstance(value, str)}
    return names


@pytest.mark.parametrize("name", ["outbox_pipeline", "outbox_consumers"])
def test_sql_files_and_their_users_agree(name: str) -> None:
    files = {re.sub(r"_pg\d+$", "", p.stem) for p in (PACKAGES[name] / "sql").rglob("*.sql")}
    strings = {
        node.value
        for path in PACKAGES[name].rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert files - strings == set(), "statements that nobody uses"
    assert _loaded_names(PACKAGES[name]) - files == set(), "statements that have no file"


@pytest.mark.parametrize("path", tracked("*.sql"), ids=lambda p: str(p.relative_to(ROOT)))
def test_sql_file_says_what_it_does(path: Path) -> None:
    text = path.read_text("utf-8")
    assert re.match(r"-- [A-Z].+\.?\n", text), "the first line says in English what the statement does"


def test_no_sql_in_python() -> None:
    """SQL in Python hides from whoever reads the sql folders; words that steer a session may stay."""
    steering = re.compile(r"(BEGIN|COMMIT|ROLLBACK|(UN)?LISTEN)\b")
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for package in PACKAGES.values()
        for path in package.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in {"execute", "executemany", "copy"}
        for text in ast.walk(call.args[0] if call.args else call.func)
        if isinstance(text, ast.Constant) and isinstance(text.value, str) and " " in text.value
        if not steering.match(text.value)
    ]
    assert found == []


def test_every_public_function_is_described() -> None:
    missing = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for package in PACKAGES.values()
        for path in package.rglob("*.py")
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and ast.get_docstring(node) is None
        and not any(isinstance(d, ast.Name) and d.id == "overload" for d in node.decorator_list)
    ]
    assert missing == []


def test_text_speaks_only_of_the_project() -> None:
    """No machine path and nothing left open in what we publish."""
    machine_path = re.compile(r"(^|[^\w.-])/(work|root|farm)/")
    left_open = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b")
    found = []
    for path in tracked():
        if path.suffix in {".png", ".svg"} or path.name == "LICENSE":
            continue
        for number, text in enumerate(path.read_text("utf-8").splitlines(), 1):
            if path != Path(__file__) and (machine_path.search(text) or left_open.search(text)):
                found.append(f"{path.relative_to(ROOT)}:{number}: {text.strip()[:80]}")
    assert found == []


def test_exit_codes_are_documented() -> None:
    from outbox_connectors.errors import ExitCode

    guide = (ROOT / "pipeline" / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d) \| ([A-Z]+) \|", guide, re.M)
    assert {int(code): name for code, name in rows} == {int(code): code.name for code in ExitCode}
