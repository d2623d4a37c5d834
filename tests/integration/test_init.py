"""`outboxctl init`: the file it writes is one that `plan` understands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fix_provision import Pipeline
from outbox_connectors import loading
from outbox_pipeline.cli import run
from outbox_pipeline.interruption import Interruption

NEW = "new.yaml"


def outboxctl(folder: Path, *arguments: str) -> int:
    return run(["-f", str(folder / NEW), *arguments], Interruption())


def test_a_new_file_is_written_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert outboxctl(tmp_path, "init", "shop", "--dry-run") == 0
    assert not (tmp_path / NEW).exists()
    shown = capsys.readouterr().out
    assert outboxctl(tmp_path, "--json", "init", "shop") == 0
    assert json.loads(capsys.readouterr().out)["content"] == shown
    assert (tmp_path / NEW).read_text("utf-8") == shown
    definition = loading.load(tmp_path / NEW, {})
    assert (definition.pipeline, definition.postgres.slot) == ("shop", "shop_outbox")
    assert definition.postgres.connector.database == "shop"

    assert outboxctl(tmp_path, "init", "other") == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert (tmp_path / NEW).read_text("utf-8") == shown


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["Bad-Name"], "'Bad-Name'"),
        (["a\nb"], "pipeline is not usable"),
        (["shop", "--database", "x" * 64], "postgres.connector.database"),
    ],
)
def test_a_name_that_cannot_be_used_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert outboxctl(tmp_path, "init", *arguments) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1
    assert not (tmp_path / NEW).exists()


@pytest.mark.parametrize("database", ["on", "my shop: #1", '"quoted"'])
def test_any_name_of_a_database_survives(tmp_path: Path, database: str) -> None:
    assert outboxctl(tmp_path, "init", "shop", "--database", database) == 0
    assert loading.load(tmp_path / NEW, {}).postgres.connector.database == database


@pytest.mark.parametrize("name", ["on", "1", "1_0", "null"])
def test_any_name_of_a_pipeline_survives(tmp_path: Path, name: str) -> None:
    assert outboxctl(tmp_path, "init", name, "--database", "shop") == 0
    definition = loading.load(tmp_path / NEW, {})
    assert (definition.pipeline, definition.postgres.connector.user) == (name, f"{name}_cdc")


@pytest.mark.stack
def test_plan_reads_it(
    untouched: Pipeline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    site = untouched.site
    for name, value in site.database.server.environ.items():
        monkeypatch.setenv(name, value)
    name, database = site.definition.pipeline, site.database.name
    assert outboxctl(tmp_path, "init", name, "--database", database) == 0
    capsys.readouterr()
    assert outboxctl(tmp_path, "--json", "plan") == 3
    document = json.loads(capsys.readouterr().out)
    states = {one["kind"]: one["state"] for one in document["objects"]}
    assert states.pop("function") == "different", "PUBLIC may write logical messages in a new database"
    assert set(states.values()) == {"present", "missing"}
    assert states["slot"] == states["connector"] == "missing"
