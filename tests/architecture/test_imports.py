"""What is loaded when, and what the wheel holds: promises to the processes we are imported into."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def loaded_by(statement: str) -> set[str]:
    """Import something in a fresh interpreter and say which top-level modules it loaded."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return {name.partition(".")[0] for name in run.stdout.split()}


def test_writing_an_event_loads_psycopg_and_nothing_heavier() -> None:
    heavy = {
        "requests",
        "yaml",
        "click",
        "rich",
        "confluent_kafka",
        "urllib3",
        "prometheus_client",
        "asyncio.runners",
    }
    loaded = loaded_by("from outbox_pipeline import outbox")
    assert loaded & heavy == set()
    assert "psycopg" in loaded


def test_consuming_never_loads_the_road() -> None:
    loaded = loaded_by("import outbox_consumers")
    assert loaded & {"outbox_pipeline", "requests", "yaml", "click", "rich"} == set()


def test_help_imports_no_command() -> None:
    loaded = loaded_by("from outbox_pipeline.cli import cli; cli.main(['--help'], standalone_mode=False)")
    assert loaded & {"psycopg", "requests", "yaml", "rich", "confluent_kafka"} == set()


def test_wheel_installs_exactly_three_packages(tmp_path: Path) -> None:
    """A fourth top level would land in the import path of everybody who installs us."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(tmp_path),
        str(ROOT),
    ]
    subprocess.run(command, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = wheel.namelist()
    top = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert top == {"outbox_connectors", "outbox_pipeline", "outbox_consumers"}
    for package in top:
        assert f"{package}/py.typed" in names
    assert any(name.endswith(".sql") for name in names)
    assert "outbox_connectors/event_router.yaml" in names


def test_version_and_changelog_agree() -> None:
    from importlib.metadata import version

    headings = [
        line for line in (ROOT / "CHANGELOG.md").read_text("utf-8").splitlines() if line.startswith("## ")
    ]
    assert version("outbox-pipeline") in headings[0] or "Unreleased" in headings[0]
