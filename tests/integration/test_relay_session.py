"""PostgreSQL ends the session of a frozen owner: what keeps that working."""

from __future__ import annotations

from contextlib import suppress

import psycopg
import pytest
from psycopg.rows import TupleRow

from fix_relay import Relayed
from outbox_connectors.definition import Definition
from outbox_pipeline.relay.names import relay_names
from outbox_pipeline.relay.session import RelaySession
from outbox_pipeline.relay.settings import Mode
from outbox_pipeline.servers import postgres
from waiting import until

pytestmark = pytest.mark.stack


def test_a_session_that_is_silent_is_ended_but_not_behind_a_flush(relayed: Relayed) -> None:
    """A Flush stops the clock of idle_session_timeout; a pipeline of psycopg ends with one now and then."""
    session = RelaySession.open(relayed.definition, relay_names(relayed.definition), 4)
    flushed, plain = relayed.connect(), relayed.connect()
    everybody = (flushed, plain, session.conn)  # the one whose clock stands still comes first
    try:
        for conn in everybody:  # each does the next thing at once: until then its clock runs
            conn.execute("SET idle_session_timeout = '5s'")
            if conn is flushed:
                flushed.pgconn.send_flush_request()
                flushed.pgconn.flush()
            elif conn is session.conn:
                session.next_rows(0, 1, 10, published=None, unwritable=(), mode=Mode.DELETE)
        with relayed.connect() as conn:
            until(lambda: living(conn, plain, session.conn) == 0, "the end of the silent sessions")
            assert living(conn, flushed) == 1
    finally:
        for one in everybody:
            one.close()


def test_a_session_that_cannot_be_set_up_is_closed(relayed: Relayed, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, connect = [], postgres.as_admin

    def as_admin(definition: Definition, application_name: str) -> psycopg.Connection[TupleRow]:
        opened.append(connect(definition, application_name))
        with suppress(psycopg.errors.DivisionByZero):
            opened[-1].execute("BEGIN; SELECT 1 / 0")
        return opened[-1]

    monkeypatch.setattr(postgres, "as_admin", as_admin)
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        RelaySession.open(relayed.definition, relay_names(relayed.definition), 4)
    assert [conn.closed for conn in opened] == [True]


def living(conn: psycopg.Connection, *sessions: psycopg.Connection) -> int:
    pids = [one.info.backend_pid for one in sessions]
    row = conn.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = ANY (%s)", (pids,)).fetchone()
    assert row is not None
    return int(row[0])
