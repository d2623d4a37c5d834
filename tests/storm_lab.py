"""A storm over a consumer group: members that come, go, freeze and die, and servers that die under them.

Everything is drawn from one seed, and every kind of accident is met as often as the deck holds it, however
slow the machine is: what has to happen is waited for, not hoped for.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from uuid_utils.compat import uuid7

from asking import administrator
from commit_cutter import CommitCutter
from fix_consumer import Bench
from outbox_connectors.errors import ExitCode
from waiting import until

PATIENCE = 300.0
MEMBERS = 5
SESSION_MS, HEARTBEAT_MS = 1500, 300
DECK = (
    *("freeze", "leave", "kill") * 2,
    *("cut_before", "cut_after", "cut_before", "cut_after"),
    *("kill_broker", "kill_database"),
)


class Writer:
    """Sends numbered events at a rate until stopped, one in fifty a second time later on.

    The producer is idempotent: what is sent twice is so on purpose, and order holds over a dead broker.
    """

    def __init__(self, bench: Bench, rate: float, chance: random.Random, keys: int = 40) -> None:
        self.sent: dict[uuid.UUID, tuple[str, int]] = {}
        self.repeated = 0
        self.refused: list[object] = []
        self._topic = bench.topic
        self._rate = rate
        self._chance = chance
        self._keys = keys
        self._recent: deque[uuid.UUID] = deque(maxlen=2000)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._producer = Producer(
            {
                "bootstrap.servers": bench.server.kafka,
                "enable.idempotence": True,
                "message.timeout.ms": 0,  # never give up: the broker comes back
                "linger.ms": 2,
                "log_level": 0,  # that its broker is dead is no news
                "on_delivery": lambda error, _: self.refused.append(error) if error else None,
            }
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def finish(self, at_least: int) -> None:
        """Stop, complete the number of events, and wait until all are in Kafka."""
        self.stop()
        while len(self.sent) < at_least:
            self._send_one()
        until(lambda: self._producer.flush(5) == 0)
        assert self.refused == []

    def _run(self) -> None:
        begin = time.monotonic()
        while not self._stopped.is_set():
            self._send_one()
            ahead = len(self.sent) / self._rate - (time.monotonic() - begin)
            if ahead > 0.01:
                self._stopped.wait(ahead)

    def _send_one(self) -> None:
        n = len(self.sent)
        event_id = uuid7()
        self.sent[event_id] = (f"k{n % self._keys}", n)
        self._produce(event_id)
        self._recent.append(event_id)
        if self._chance.random() < 0.02:
            self._produce(self._chance.choice(self._recent))
            self.repeated += 1

    def _produce(self, event_id: uuid.UUID) -> None:
        key, n = self.sent[event_id]
        headers: list[tuple[str, str | bytes | None]] = [
            ("id", str(event_id).encode()),
            ("event_type", b"Placed"),
        ]
        while True:
            try:
                self._producer.produce(self._topic, json.dumps({"n": n}).encode(), key, headers=headers)
            except BufferError:
                self._producer.poll(0.1)
            else:
                self._producer.poll(0)
                return


@dataclass(frozen=True, slots=True)
class Ledger:
    """What was sent against what was done, by ids."""

    sent: dict[uuid.UUID, tuple[str, int]]
    effects: Sequence[tuple[uuid.UUID, str, int]]
    dead: int

    @property
    def missing(self) -> int:
        return len(self.sent.keys() - {event_id for event_id, _, _ in self.effects})

    @property
    def twice(self) -> int:
        return len(self.effects) - len({event_id for event_id, _, _ in self.effects})

    @property
    def wrong(self) -> int:
        """Effects of events that nobody sent, or with another event's content."""
        return sum(self.sent.get(event_id) != (key, n) for event_id, key, n in self.effects)

    @property
    def out_of_order(self) -> int:
        last: dict[str, int] = {}
        late = 0
        for _, key, n in self.effects:
            late += n <= last.get(key, -1)
            last[key] = n
        return late

    def __str__(self) -> str:
        return (
            f"sent={len(self.sent)} applied={len(self.effects)} missing={self.missing} twice={self.twice} "
            f"wrong={self.wrong} out_of_order={self.out_of_order} dead={self.dead}"
        )


@dataclass(slots=True)
class Storm:
    """Five members of one group, each a process as users run it, behind a proxy that cuts COMMITs."""

    bench: Bench
    protocol: str
    folder: Path
    cutter: CommitCutter
    chance: random.Random
    members: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    frozen: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    happened: Counter[str] = field(default_factory=Counter)

    def begin(self) -> None:
        if self.protocol == "consumer":
            self._shorten_session()
        self.fill()

    def blow(self, end: float) -> None:
        """Deal one deck of accidents after the other until the time `end`; at least one."""
        while True:
            deck = list(DECK)
            self.chance.shuffle(deck)
            for accident in deck:
                getattr(self, accident)()
                self.happened[accident] += 1
                self.thaw()
                if self.chance.random() < 0.7:
                    self.fill()
                time.sleep(self.chance.uniform(0.1, 0.8))
            if time.monotonic() > end:
                return

    def calm(self) -> None:
        """Let everything live again: whoever is frozen once the group has given it up, whoever is gone."""
        until(lambda: self.thaw() == 0)
        until(self._complete)

    def drain(self, wanted: int) -> None:
        """Wait for the last effect, for as long as there is any progress."""
        done = 0
        while done < wanted:
            done = until(partial(self._more_than, done), f"more than {done} of {wanted} effects")

    def end(self) -> list[int]:
        """Stop all members in an orderly way and give their exit codes."""
        for member in self.members.values():
            member.terminate()
        return [member.wait(PATIENCE) for member in self.members.values()]

    def destroy(self) -> None:
        """Leave no process behind."""
        for member in self.members.values():
            member.kill()
            member.wait()

    # -- Accidents

    def freeze(self) -> None:
        """Stop a member without its knowing, until it has outlived its session (see `thaw`)."""
        name = self._some_member()
        self.members[name].send_signal(signal.SIGSTOP)
        self.frozen[name] = self.members[name]

    def leave(self) -> None:
        name = self._some_member()
        member = self.members.pop(name)
        member.terminate()
        # One that is told to leave before it has begun ends as any process, or for a server that is away.
        code, fine = member.wait(PATIENCE), (0, -signal.SIGTERM, ExitCode.UNREACHABLE)
        assert code in fine, (self.folder / f"{name}.log").read_text()[-2000:]

    def kill(self) -> None:
        member = self.members.pop(self._some_member())
        member.kill()
        member.wait()

    def cut_before(self) -> None:
        self.cutter.cut("before")

    def cut_after(self) -> None:
        self.cutter.cut("after")

    def kill_broker(self) -> None:
        self._kill_server("kafka")

    def kill_database(self) -> None:
        self._kill_server("postgres")

    # -- What follows them

    def fill(self) -> None:
        """Start the members that are not there, as a supervisor would."""
        for number in range(MEMBERS):
            name = f"member{number}"
            if self._has_ended(name):
                self.members[name] = self._start(name)

    def _has_ended(self, name: str) -> bool:
        """Say whether a member is to be started; its only good reason to end is a server it cannot reach."""
        code = self.members[name].poll() if name in self.members else ExitCode.UNREACHABLE
        assert code in (None, ExitCode.UNREACHABLE), (self.folder / f"{name}.log").read_text()[-2000:]
        return code is not None

    def thaw(self) -> int:
        """Wake the members that the group has replaced; say how many are frozen still."""
        known = self._known_members() if self.frozen else set()
        for name in [name for name in self.frozen if known is not None and name not in known]:
            self.frozen.pop(name).send_signal(signal.SIGCONT)
        return len(self.frozen)

    def ledger(self, sent: dict[uuid.UUID, tuple[str, int]]) -> Ledger:
        effects = self.bench.query("SELECT event_id, key, n FROM effect ORDER BY place")
        dead = self.bench.query("SELECT count(*) FROM inbox_dead_letter")[0][0]
        return Ledger(sent, [(row[0], row[1], row[2]) for row in effects], dead)

    def applied(self) -> int:
        """Count the effects; -1 while the database cannot say."""
        with suppress(psycopg.OperationalError):
            return int(self.bench.query("SELECT count(*) FROM effect")[0][0])
        return -1

    def _complete(self) -> bool:
        self.fill()
        return len(self._known_members() or ()) == MEMBERS

    def _more_than(self, done: int) -> int:
        applied = self.applied()
        return applied if applied > done else 0

    def _some_member(self) -> str:
        """Choose a member that lives and is not frozen; one at least always comes back."""
        self.fill()
        until(lambda: self.thaw() < MEMBERS)
        return self.chance.choice(sorted(self.members.keys() - self.frozen.keys()))

    def _kill_server(self, service: str) -> None:
        self.bench.server.kill(service)
        time.sleep(self.chance.uniform(0, 1))
        try:
            self.bench.server.start(service)
        except pytest.fail.Exception:
            self.bench.server.start(service)  # it waits two minutes, of which a busy machine may need more

    def _known_members(self) -> set[str] | None:
        """Ask the group for the client ids of its members; None while it cannot say."""
        admin = administrator({"bootstrap.servers": self.bench.server.kafka})
        with suppress(KafkaException):
            group = admin.describe_consumer_groups([self.bench.topic], request_timeout=5)
            return {member.client_id for member in group[self.bench.topic].result(PATIENCE).members}
        return None

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        kafka: dict[str, Any] = {
            "bootstrap.servers": self.bench.server.kafka,
            "group.id": self.bench.topic,
            "client.id": name,
            "group.protocol": self.protocol,
        }
        if self.protocol == "classic":
            kafka |= {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}
        server: dict[str, Any] = dict(conninfo_to_dict(self.bench.dsn))
        proxy = {"host": "127.0.0.1", "port": self.cutter.port, "sslmode": "disable", "gssencmode": "disable"}
        environ = {
            "STORM_KAFKA": json.dumps(kafka),
            "STORM_DSN": make_conninfo("", **{**server, **proxy}),
            "STORM_TOPIC": self.bench.topic,
        }
        command = [str(Path(sys.executable).with_name("outboxctl")), "consume", "storm_app:app"]
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=Path(__file__).parent, env=os.environ | environ, stdout=log, stderr=log
            )

    def _shorten_session(self) -> None:
        """The broker decides how soon a member of the new protocol is missed."""
        admin = administrator({"bootstrap.servers": self.bench.server.kafka})
        times = {"consumer.session.timeout.ms": SESSION_MS, "consumer.heartbeat.interval.ms": HEARTBEAT_MS}
        entries = [
            ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET)
            for name, value in times.items()
        ]
        resource = ConfigResource(ConfigResource.Type.GROUP, self.bench.topic, incremental_configs=entries)
        for done in admin.incremental_alter_configs([resource]).values():
            done.result(PATIENCE)
