"""scripts/stack, tested on a stack of its own (PostgreSQL alone where that is enough)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest

from fix_stack import SCRIPT, Stack
from local_stack import kafka, processes
from local_stack.accounts import server_account
from local_stack.errors import StackError
from local_stack.exports import variables
from local_stack.instance import Instance, file_lock, load
from local_stack.layout import Layout, checked_name
from local_stack.ports import DEFAULT_PORTS, FIRST, LAST, assign
from local_stack.processes import Process, descendants, kill_tree, recorded, replace, started, uninterrupted
from local_stack.programs import require_room
from local_stack.removal import remove
from local_stack.services import failure_reason
from local_stack.services import running as running_process
from waiting import until

pytestmark = pytest.mark.stack
NAME = f"own-{os.getpid()}"


def stack(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPT, "--name", NAME, *arguments],
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def works(*arguments: str) -> str:
    done = stack(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def fails(*arguments: str, **environ: str) -> str:
    """The one line on stderr of a command that must fail."""
    done = stack(*arguments, **environ)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("stack: ")
    return done.stderr


@pytest.fixture(scope="module")
def instance() -> Iterator[Instance]:
    works("reset")
    works("up", "postgres")
    yield load(Layout(), NAME)
    works("reset")
    assert not (Layout().stacks / NAME).exists()


@pytest.fixture
def own(instance: Instance) -> Instance:
    """The stack of this module, with PostgreSQL running."""
    works("up", "postgres")
    return load(Layout(), NAME)


def process(instance: Instance, service: str = "postgres") -> Process:
    found = running_process(instance, service)
    assert found is not None
    return found


def query(instance: Instance, statement: LiteralString) -> Any:
    environ = variables(instance)
    with psycopg.connect(
        host=environ["PGHOST"],
        port=environ["PGPORT"],
        user=environ["PGUSER"],
        password=environ["PGPASSWORD"],
        dbname="shop",
        autocommit=True,
    ) as conn:
        cursor = conn.execute(statement)
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


def test_a_second_up_changes_nothing_and_downloads_nothing(own: Instance) -> None:
    before = process(own)
    said = works("up", "postgres", "--postgres", "18")
    assert process(own) == before
    assert "ready: PostgreSQL 18" in said
    assert "downloading" not in said


def test_env_is_shell_code_and_nothing_else(own: Instance) -> None:
    code = works("env")
    assert all(line.startswith("export ") for line in code.splitlines())
    shell = subprocess.run(
        ["sh", "-c", f'{code}\ncommand -v outboxctl; echo "$PGPORT $PGDATABASE $OUTBOX_CONNECT_URL"'],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    program, values = shell.stdout.splitlines()
    assert program == str(Layout().repository / ".venv/bin/outboxctl")
    assert values == f"{own.ports['postgres']} shop http://127.0.0.1:{own.ports['connect']}"


def test_status_tells_what_runs(own: Instance) -> None:
    content = json.loads(works("status", "--json"))
    states = {service["name"]: service["state"] for service in content["services"]}
    assert states == {"postgres": "running", "kafka": "stopped", "connect": "stopped"}
    assert content["postgres_major"] == 18


def test_a_killed_postgres_leaves_no_process_and_recovers(own: Instance) -> None:
    query(own, "CREATE TABLE IF NOT EXISTS kept (id int)")
    query(own, "INSERT INTO kept VALUES (1)")
    family = [process(own).pid, *descendants(process(own).pid)]
    assert len(family) > 3
    works("kill", "postgres")
    assert [pid for pid in family if started(pid) is not None] == []
    assert "is not running" in fails("kill", "postgres")
    works("start", "postgres")
    assert query(own, "SELECT count(*) FROM kept") > 0
    assert "database system was not properly shut down" in own.log("postgres").read_text()


def test_stop_is_orderly_and_start_continues(own: Instance) -> None:
    works("stop", "postgres")
    assert stack("status").returncode == 3
    assert "database system is shut down" in works("logs", "postgres", "-n", "1")
    works("start", "postgres")
    assert stack("status").returncode == 0


def test_a_service_that_died_is_seen_and_healed(own: Instance) -> None:
    victim = process(own)
    family = [Process(pid, str(started(pid)), 0) for pid in descendants(victim.pid)]
    os.kill(victim.pid, signal.SIGKILL)
    until(lambda: not any(one.alive for one in (victim, *family)))  # they share its memory
    seen = stack("status")
    assert (seen.returncode, "crashed" in seen.stdout) == (3, True)
    works("up", "postgres")
    assert process(own) != victim


def test_up_waits_for_the_processes_of_a_killed_server(own: Instance) -> None:
    """Its children exit a moment later; until then a new server refuses to start."""
    victim, log = process(own), own.log("postgres")
    child = descendants(victim.pid)[0]
    os.kill(child, signal.SIGSTOP)
    try:
        os.kill(victim.pid, signal.SIGKILL)
        length = log.stat().st_size
        up = subprocess.Popen([SCRIPT, "--name", NAME, "up", "postgres"], stdout=subprocess.PIPE, text=True)
        until(lambda: "shared memory block" in log.read_text()[length:] or up.poll() is not None)
    finally:
        os.kill(child, signal.SIGCONT)
    said, _ = up.communicate()
    assert up.returncode == 0, said
    assert query(own, "SELECT 1") == 1


def test_a_command_that_waited_works_on_the_state_of_now(own: Instance) -> None:
    with own.locked():
        waiting = subprocess.Popen([SCRIPT, "--name", NAME, "down"], stdout=subprocess.PIPE, text=True)
        assert waiting.stdout is not None
        assert "waiting for another command" in waiting.stdout.readline()
        changed = load(Layout(), NAME)
        changed.settings["work_mem"] = "5MB"
        changed.save()
    waiting.communicate()
    assert waiting.returncode == 0
    assert load(Layout(), NAME).settings == {"work_mem": "5MB"}
    works("up", "postgres", "--set", "work_mem=")


def test_reset_deletes_what_an_interrupted_reset_left() -> None:
    folder = Layout().folder(f"left-{os.getpid()}")
    (folder / "data").mkdir(parents=True)
    subprocess.run([SCRIPT, "--name", folder.name, "reset"], stdout=subprocess.DEVNULL, check=True)
    assert not folder.exists()


def test_a_taken_port_is_one_line(own: Instance) -> None:
    works("stop", "postgres")
    with socket.create_server(("127.0.0.1", own.ports["postgres"])):
        assert f"port {own.ports['postgres']} is taken" in fails("start", "postgres")
    works("start", "postgres")


def test_up_moves_an_idle_stack_away_from_a_taken_port(own: Instance) -> None:
    works("down")
    with socket.create_server(("127.0.0.1", own.ports["postgres"])):
        works("up", "postgres")
    moved = load(Layout(), NAME)
    assert moved.ports["postgres"] != own.ports["postgres"]
    assert query(moved, "SELECT 1") == 1


def test_a_stale_pid_file_harms_nobody(own: Instance) -> None:
    works("down")
    with subprocess.Popen(["sleep", "300"]) as bystander:
        try:
            content = {"pid": bystander.pid, "started": "another day", "log_offset": 0}
            own.pid_file("postgres").write_text(json.dumps(content))
            works("down")
            assert bystander.poll() is None
            own.pid_file("postgres").write_text("no json")
            (own.data("postgres") / "postmaster.pid").write_text(f"{bystander.pid}\n")
            works("up", "postgres")
            assert bystander.poll() is None
        finally:
            bystander.kill()


def test_another_major_than_the_data_is_refused(own: Instance) -> None:
    assert "belongs to PostgreSQL 18, not 17" in fails("--postgres", "17", "up", "postgres")
    assert load(Layout(), NAME).major == 18


def test_settings_are_kept_until_they_are_removed(own: Instance) -> None:
    works("up", "postgres", "--set", "work_mem=3MB")
    works("down")
    works("up", "postgres")
    assert query(own, "SHOW work_mem") == "3MB"
    works("up", "postgres", "--set", "work_mem=")
    assert query(own, "SHOW work_mem") == "4MB"


def test_a_service_that_cannot_start_says_why(own: Instance) -> None:
    line = fails("up", "postgres", "--set", "work_mem=much")
    assert 'invalid value for parameter "work_mem"' in line
    assert str(own.log("postgres")) in line
    works("up", "postgres", "--set", "work_mem=")


def test_without_java_nothing_starts(own: Instance, tmp_path: Path) -> None:
    for program in ("bash", "dirname"):
        (tmp_path / program).symlink_to(str(shutil.which(program)))
    line = fails("up", "kafka", PATH=str(tmp_path), JAVA_HOME="")
    assert "no java on PATH" in line
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    assert "is Java 11, Kafka needs 17" in fails("up", "kafka", JAVA_HOME=str(tmp_path))
    assert recorded(own.pid_file("kafka")) is None


def test_connect_waits_for_no_kafka_that_is_not_there(own: Instance) -> None:
    assert "connect needs kafka" in fails("start", "connect")


def test_two_ups_at_once_take_turns(own: Instance) -> None:
    works("down")
    command = [str(SCRIPT), "--name", NAME, "up", "postgres"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [one.communicate()[0] for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert sum("starting" in text for text in said) == 1


def test_wrong_usage_is_one_line(instance: Instance) -> None:
    for arguments in (("fly",), ("up", "mysql"), ("--postgres", "9", "up"), ("up", "--set", "nothing")):
        done = stack(*arguments)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr


def test_a_stack_that_does_not_exist(instance: Instance) -> None:
    done = subprocess.run([SCRIPT, "--name", "never", "env"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "stack: there is no stack 'never' yet; scripts/stack --name never up\n"


def test_passwords_are_private(own: Instance) -> None:
    assert own.secrets_file.stat().st_mode & 0o077 == 0
    secrets = own.passwords().values()
    lines = subprocess.run(["ps", "-axww", "-o", "args="], capture_output=True, text=True, check=True).stdout
    assert not [secret for secret in secrets if secret in lines]
    assert not [secret for secret in secrets if secret in own.log("postgres").read_text()]


def test_no_cluster_id_looks_like_an_option() -> None:
    made = [kafka.cluster_id(bytes([first, *range(240, 255)])) for first in range(256)]
    assert {len(one) for one in made} == {22}
    assert not any(one.startswith("-") for one in made)


def test_a_damaged_state_file_is_one_line_and_reset_removes_it(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    folder = layout.folder("broken")
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("{")
    with pytest.raises(StackError, match="reset"):
        load(layout, "broken")
    assert load(layout, "broken", damaged=True).ports == {}


def test_a_stack_that_is_just_being_deleted_is_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Instance, "exists", property(lambda self: True))
    assert load(Layout(tmp_path), "one").ports == {}


def test_the_damaged_state_of_another_stack_disturbs_nobody(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    (layout.folder("broken") / "run").mkdir(parents=True)
    (layout.folder("broken") / "state.json").write_text("{")
    one = load(layout, "one")
    one.make_folders()
    assign(one, idle=True)
    assert len(one.ports) == 4


def test_two_commands_generate_the_same_passwords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = load(Layout(tmp_path), "one")
    one.make_folders()

    def draw(_: int) -> str:
        if not one.secrets_file.exists():
            replace(one.secrets_file, "postgres=first\ncdc=first\napp=first\n")
        return "second"

    monkeypatch.setattr("local_stack.instance.secrets.token_hex", draw)
    assert set(one.passwords().values()) == {"first"}


def test_the_folder_outside_stays_while_another_stack_decides_to_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, outside = Layout(tmp_path), tmp_path / "outside"
    monkeypatch.setattr(Layout, "outside", property(lambda self: outside))
    outside.mkdir()
    one = load(layout, "one")
    one.make_folders()
    removal = threading.Thread(target=remove, args=(one,))
    with file_lock(layout.stacks / ".outside.lock"):
        removal.start()
        until(lambda: not one.folder.exists())
        removal.join(0.3)
        assert outside.exists()
    removal.join()
    assert not outside.exists()


def test_a_kill_that_does_not_end_a_process_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "KILL_SECONDS", 0.1)
    monkeypatch.setattr(processes, "send", lambda process, number: None)
    with subprocess.Popen(["sleep", "300"]) as child:
        try:
            with pytest.raises(StackError, match=f"pid {child.pid}"):
                kill_tree(Process(child.pid, str(started(child.pid)), 0))
        finally:
            child.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_the_pid_file_is_written(number: signal.Signals) -> None:
    received: list[int] = []
    before = signal.signal(number, lambda number, _frame: received.append(number))
    try:
        with uninterrupted():
            os.kill(os.getpid(), number)
            assert received == []
        assert received == [number]
    finally:
        signal.signal(number, before)


def test_names_get_ports_of_their_own(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    ports: list[int] = []
    for name in ("local", "one", "two"):
        instance = load(layout, name)
        instance.make_folders()
        assign(instance, idle=True)
        assert load(layout, name).ports == instance.ports
        ports += instance.ports.values()
    assert len(set(ports)) == 12
    assert ports[:4] == list(DEFAULT_PORTS.values())
    assert all(FIRST <= port < LAST for port in ports[4:])


@pytest.mark.parametrize("name", ["lib", "pythons", "", "../x", "A", "-x"])
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(StackError, match="not a valid name of a stack"):
        checked_name(name)


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="MB free on the disk of"):
        require_room(tmp_path, 2**62)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs servers as somebody else")
def test_a_clone_that_the_server_cannot_enter_gets_a_folder_outside(tmp_path: Path) -> None:
    clone = tmp_path / "private" / "clone"
    clone.mkdir(parents=True)
    clone.parent.chmod(0o700)
    layout = Layout(clone)
    try:
        assert layout.postgres_base(server_account()) == layout.outside
        layout.outside.chmod(0o777)
        with pytest.raises(StackError, match="created by another user"):
            layout.postgres_base(server_account())
    finally:
        layout.outside.rmdir()


@pytest.mark.slow
def test_an_orderly_stop_leaves_an_archive_for_a_quick_start(stack: Stack) -> None:
    stack.stop("connect")
    assert list((Layout().lib / "kafka").glob("connect-*.jsa"))
    stack.start("connect")


@pytest.mark.slow
def test_kafka_and_connect_come_back_after_a_kill(stack: Stack) -> None:
    instance = load(Layout(), stack.name)
    before = {name: process(instance, name) for name in ("kafka", "connect")}
    stack.kill("connect")
    stack.kill("kafka")
    assert not any(one.alive for one in before.values())
    stack.start("kafka")
    stack.start("connect")
    assert all(process(instance, name) != one for name, one in before.items())


def test_the_reason_of_a_java_crash_is_found_in_the_log(own: Instance) -> None:
    log = own.log("kafka")
    log.write_text(
        "INFO nothing\n2026 ERROR Exiting due to fatal exception (kafka.Kafka$)\n"
        "org.apache.kafka.common.KafkaException: Failed to acquire lock on file .lock\n\tat kafka.Kafka\n"
    )
    found = failure_reason(own, kafka.SERVICE, Process(0, "dead", 0))
    assert found == "org.apache.kafka.common.KafkaException: Failed to acquire lock on file .lock"
