"""Reading Kafka Connect's answers: the line of a trace, states, offsets, complaints."""

from __future__ import annotations

import pytest

from outbox_pipeline.connect import answers
from outbox_pipeline.connect.answers import FieldError, trace_line

POISON = """org.apache.kafka.connect.errors.ConnectException: Tolerance exceeded in error handler
\tat org.apache.kafka.connect.runtime.errors.RetryWithToleranceOperator.execAndHandleError(Retry.java:260)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: java.lang.NullPointerException: Cannot invoke "length()" because "this.text" is null
\tat java.base/java.util.regex.Matcher.getTextLength(Matcher.java:1770)
\t... 14 more
"""

REFUSED = """io.debezium.DebeziumException: Couldn't obtain encoding for database app
\tat io.debezium.connector.postgresql.connection.PostgresConnection.getDatabaseCharset(P.java:1)
Caused by: org.postgresql.util.PSQLException: Connection to db:5432 refused. Check that the port is correct.
\tat org.postgresql.core.v3.ConnectionFactoryImpl.openConnectionImpl(ConnectionFactoryImpl.java:352)
Caused by: java.net.ConnectException: Connection refused
\tat java.base/sun.nio.ch.Net.pollConnect(Native Method)
"""

MANY_LINES = """io.debezium.DebeziumException: outer
\tat a.B.c(D.java:1)
Caused by: org.postgresql.util.PSQLException: ERROR: cannot read from logical replication slot "x"
  Detail: This slot has been invalidated.
\tat a.B.c(D.java:1)
\tSuppressed: java.lang.RuntimeException: not this
\t\tat a.B.c(D.java:1)
"""


@pytest.mark.parametrize(
    ("trace", "line"),
    [
        ("", ""),
        ("a.b.SomeException", "SomeException"),
        (POISON, 'NullPointerException: Cannot invoke "length()" because "this.text" is null'),
        (REFUSED, "PSQLException: Connection to db:5432 refused. Check that the port is correct."),
        (
            MANY_LINES,
            'PSQLException: ERROR: cannot read from logical replication slot "x" '
            "Detail: This slot has been invalidated.",
        ),
        (
            "a.B: jdbc:postgresql://h/d?user=u&password=hunter2&x=1",
            "B: jdbc:postgresql://h/d?user=u&password=***&x=1",
        ),
        ("a.B: slot active for PID 7; see log", "B: slot active for PID 7; see log"),
    ],
)
def test_the_line_that_matters_is_the_innermost_cause_that_says_something(trace: str, line: str) -> None:
    assert trace_line(trace) == line


def test_a_status_knows_its_tasks_and_the_first_trace() -> None:
    status = answers.status(
        {
            "name": "shop",
            "connector": {"state": "RUNNING", "worker_id": "w:8083", "version": "3.7.0.Final"},
            "tasks": [{"id": 0, "state": "FAILED", "worker_id": "w:8083", "trace": POISON}],
        }
    )
    assert status.failed
    assert not status.stopped
    assert status.version == "3.7.0.Final"
    assert status.trace_line.startswith("NullPointerException")


def test_stopped_means_that_no_task_is_left() -> None:
    body = {"name": "shop", "connector": {"state": "STOPPED", "worker_id": "w"}}
    task = {"id": 0, "state": "RUNNING", "worker_id": "w"}
    assert answers.status({**body, "tasks": []}).stopped
    assert not answers.status({**body, "tasks": [task]}).stopped


def test_the_offset_of_the_topic_prefix_is_picked_among_strays() -> None:
    stray = {"partition": {"server": "typo"}, "offset": {"lsn": 1}}
    real = {
        "partition": {"server": "shop"},
        "offset": {"lsn": 30, "lsn_proc": 20, "lsn_commit": 10, "messageType": "BEGIN", "txId": 7},
    }
    offset = answers.source_offset({"offsets": [stray, real]}, "shop")
    assert offset is not None
    assert (offset.lsn, offset.lsn_proc, offset.lsn_commit) == (30, 20, 10)
    assert offset.message_type == "BEGIN"
    assert offset.resume_at == 20
    assert not offset.snapshot
    assert offset.raw["txId"] == 7


@pytest.mark.parametrize(
    "body", [{}, {"offsets": []}, {"offsets": [{"partition": {"server": "s"}, "offset": None}]}]
)
def test_no_stored_position_is_none(body: dict[str, object]) -> None:
    assert answers.source_offset(body, "s") is None


def test_nonsense_that_connect_accepted_is_no_position() -> None:
    body = {"offsets": [{"partition": {"server": "s"}, "offset": {"lsn": "abc", "lsn_commit": True}}]}
    offset = answers.source_offset(body, "s")
    assert offset is not None
    assert (offset.lsn, offset.lsn_proc, offset.lsn_commit, offset.resume_at) == (None, None, None, None)


def test_a_snapshot_under_way_is_seen() -> None:
    body = {"offsets": [{"partition": {"server": "s"}, "offset": {"lsn": 5, "snapshot": "INITIAL"}}]}
    offset = answers.source_offset(body, "s")
    assert offset is not None
    assert offset.snapshot


def test_complaints_come_one_a_line_and_once() -> None:
    body = {
        "error_count": 2,
        "configs": [
            {"value": {"name": "slot.name", "errors": ["Value is\n  invalid", "Value is\n  invalid"]}},
            {"value": {"name": "tasks.max", "errors": []}},
        ],
    }
    assert answers.field_errors(body) == (FieldError("slot.name", "Value is invalid"),)
