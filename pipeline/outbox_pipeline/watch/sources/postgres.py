"""Sample PostgreSQL: one round trip, no lock above AccessShare, bounded by a statement time-out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import psycopg
from psycopg import errors
from psycopg import sql as composed

from outbox_connectors.definition import TableName
from outbox_pipeline import sql
from outbox_pipeline.errors import AccessDenied, Unreachable
from outbox_pipeline.servers import trust
from outbox_pipeline.watch.sample import (
    Holder,
    OutboxSample,
    PostgresSample,
    Publication,
    Sender,
    ServerSample,
    ServerSettings,
    Slot,
    WatchedNames,
)

STATEMENT_TIMEOUT = "3s"
LOCK_TIMEOUT = "300ms"
PAGE_BYTES = 8192
SETTINGS = (
    "wal_level",
    "wal_segment_size",
    "max_wal_size",
    "max_slot_wal_keep_size",
    "wal_keep_size",
    "checkpoint_timeout",
    "checkpoint_completion_target",
    "max_replication_slots",
    "wal_sender_timeout",
    "idle_replication_slot_timeout",
    "synchronized_standby_slots",
)
# Errors of an optional statement that do not fail the sample: a revoked right, a table dropped or locked.
HARMLESS = (
    errors.InsufficientPrivilege,
    errors.UndefinedTable,
    errors.UndefinedColumn,
    errors.LockNotAvailable,
    errors.QueryCanceled,
)
_UNITS = {"B": 1, "kB": 1024, "8kB": 8192, "MB": 1024**2, "ms": 0.001, "s": 1, "min": 60}


class PostgresSource:
    """A session that takes samples; opened when first needed, and again after it was lost.

    Not safe for two threads at once. `look` never raises for what the server does: what it cannot
    see is None in the sample, and a server that cannot be asked raises Unreachable.
    """

    def __init__(
        self, connect: Callable[[], psycopg.Connection[Any]], names: WatchedNames, table: TableName
    ) -> None:
        self._connect = connect
        self._table = table
        self._parameters = {
            "schema": table.schema,
            "table": table.name,
            "publication": names.publication,
            "ticker": names.ticker,
            "settings": list(SETTINGS),
        }
        self._conn: psycopg.Connection[Any] | None = None
        self._may_list_wal = False
        self._readable = False
        self._trusted = False

    def look(self) -> PostgresSample:
        """Take one sample. Raises Unreachable."""
        try:
            if self._conn is None or self._conn.closed:
                self._conn = self._open()
                self._look(self._conn)  # learns what the session may see
            return self._look(self._conn)
        except psycopg.Error as error:
            self.close()
            problem = " ".join(str(error).split()) or type(error).__name__
            kind = AccessDenied if isinstance(error, errors.InsufficientPrivilege) else Unreachable
            raise kind(f"PostgreSQL did not answer the sample: {problem}") from error

    def close(self) -> None:
        """End the session. The next look opens another."""
        if self._conn is not None:
            self._conn.close()
        self._conn = None

    def _open(self) -> psycopg.Connection[Any]:
        conn = self._connect()
        timeouts = {"statement_timeout": STATEMENT_TIMEOUT, "lock_timeout": LOCK_TIMEOUT}
        try:
            psycopg.Cursor(conn).execute(sql.get("watch_session"), timeouts)
            self._trusted = not trust.of_outbox(conn, self._table)  # reading a view or a policy runs its code
        except BaseException:
            conn.close()
            raise
        return conn

    def _look(self, conn: psycopg.Connection[Any]) -> PostgresSample:
        """Send the sample and what the rights seen last time allow, in one round trip.

        Each statement is prepared at its first use: psycopg (3.3) notices when the pipeline breaks off before
        that, but not when it prepares a statement later, as it does by itself after five uses.
        """
        major = conn.info.server_version // 10000
        main, publication, wal, oldest = (psycopg.Cursor(conn) for _ in range(4))
        try:
            with conn.pipeline() as pipeline:
                main.execute(sql.get("watch_sample", major), self._parameters, prepare=True)
                publication.execute(sql.get("watch_publication", major), self._parameters, prepare=True)
                pipeline.sync()  # what follows may fail without taking the sample with it
                if self._may_list_wal:
                    wal.execute(sql.get("watch_wal_size"), prepare=True)
                    pipeline.sync()
                if self._readable:
                    oldest.execute(self._oldest(), prepare=True)
        except HARMLESS:
            self._may_list_wal = self._readable = False
        document = _first(main)
        if document is None:
            raise psycopg.OperationalError("the statement was cut short by a lock or its time-out")
        sample = read(document, _first(publication))
        self._may_list_wal = document["server"]["may_list_wal"]
        self._readable = self._trusted and sample.outbox is not None and sample.outbox.readable
        return _completed(sample, _first(wal), _first(oldest))

    def _oldest(self) -> composed.Composed:
        table = composed.Identifier(self._table.schema, self._table.name)
        return composed.SQL(sql.get("watch_oldest_event")).format(table=table)


def _first(cursor: psycopg.Cursor[Any]) -> Any:
    """Read the first value of a result; None where there is no result."""
    if cursor.description is None:
        return None
    row = cursor.fetchone()
    return row[0] if row else None


def _completed(sample: PostgresSample, wal: Any, oldest: Any) -> PostgresSample:
    if wal is not None:
        sample = replace(sample, server=replace(sample.server, wal_dir_bytes=int(wal)))
    if oldest is not None and sample.outbox is not None:
        sample = replace(sample, outbox=replace(sample.outbox, oldest_seconds=max(0.0, float(oldest))))
    return sample


def read(document: Mapping[str, Any], publication: Mapping[str, Any] | None) -> PostgresSample:
    """Turn the statements' JSON documents into a sample."""
    outbox = document["outbox"]
    return PostgresSample(
        server=_server(document["server"], _settings(document["settings"])),
        slots=tuple(_slot(raw, document["server"]["clock"]) for raw in document["slots"]),
        senders=tuple(_sender(raw) for raw in document["senders"]),
        holders=tuple(Holder(**raw) for raw in document["holders"]),
        outbox=_outbox(outbox) if outbox else None,
        publication=Publication(**publication) if publication else None,
        tickers=document["tickers"],
    )


def _settings(raw: Mapping[str, tuple[str, str | None]]) -> ServerSettings:
    def number(name: str) -> float:
        setting, unit = raw.get(name, ("0", None))
        return float(setting) * _UNITS.get(unit or "", 1) if float(setting) >= 0 else -1.0

    cap = number("max_slot_wal_keep_size")
    listed = raw.get("synchronized_standby_slots", ("", None))[0]
    return ServerSettings(
        wal_level=raw["wal_level"][0],
        segment_bytes=int(number("wal_segment_size")),
        max_wal_bytes=int(number("max_wal_size")),
        slot_cap_bytes=int(cap) if cap >= 0 else None,
        wal_keep_bytes=int(number("wal_keep_size")),
        checkpoint_timeout=number("checkpoint_timeout"),
        checkpoint_completion_target=number("checkpoint_completion_target"),
        max_replication_slots=int(number("max_replication_slots")),
        wal_sender_timeout=number("wal_sender_timeout"),
        idle_slot_timeout=max(0.0, number("idle_replication_slot_timeout")),
        synchronized_standby_slots=tuple(name.strip(' "') for name in listed.split(",") if name.strip(' "')),
    )


def _server(raw: Mapping[str, Any], settings: ServerSettings) -> ServerSample:
    return ServerSample(
        version=raw["version"],
        system_identifier=raw["system_identifier"],
        timeline=raw["timeline"],
        started_at=float(raw["started_at"]),
        clock=float(raw["clock"]),
        in_recovery=raw["in_recovery"],
        wal_position=int(raw["wal_position"] or 0),
        redo_position=int(raw["redo_position"]),
        checkpoint_at=float(raw["checkpoint_at"]),
        wal_dir_bytes=None,
        archive_failing=raw["archive_failing"],
        settings=settings,
        monitor=raw["monitor"],
    )


def _slot(raw: Mapping[str, Any], clock: float) -> Slot:
    """Read a slot. Columns that the server's version lacks are absent from its row."""
    row = raw["row"]
    return Slot(
        name=row["slot_name"],
        kind=row["slot_type"],
        plugin=row["plugin"],
        database=row["database"],
        temporary=row["temporary"],
        active_pid=row["active_pid"] if row["active"] else None,
        restart_lsn=_whole(raw["restart"]),
        confirmed_lsn=_whole(raw["confirmed"]),
        wal_status=row["wal_status"],
        safe_wal_bytes=_whole(row["safe_wal_size"]),
        xmin_age=raw["xmin_age"],
        catalog_xmin_age=raw["catalog_xmin_age"],
        catalog_xmin=_whole(row["catalog_xmin"]),
        invalidation_reason=row.get("invalidation_reason"),
        conflicting=row.get("conflicting"),
        inactive_seconds=_seconds_since(row.get("inactive_since"), clock),
        failover=bool(row.get("failover")),
        synced=bool(row.get("synced")),
        spill_bytes=raw["spill_bytes"] or 0,
        total_txns=raw["total_txns"] or 0,
    )


def _whole(value: Any) -> int | None:
    return int(value) if value is not None else None


def _seconds_since(moment: Any, clock: float) -> float | None:
    return None if moment is None else max(0.0, clock - datetime_epoch(moment))


def datetime_epoch(text: str) -> float:
    """Read a timestamp as to_jsonb writes it."""
    return datetime.fromisoformat(text).timestamp()


def _sender(raw: Mapping[str, Any]) -> Sender:
    return Sender(
        pid=raw["pid"],
        backend_type=raw["backend_type"],
        user=raw["user"],
        application=raw["application"],
        client=raw["client"],
        state=raw["state"],
        sent_lsn=_whole(raw["sent"]),
        flush_lag=raw["flush_lag"],
        reply_at=raw["reply_at"],
        wait_event=raw["wait_event"],
    )


def _outbox(raw: Mapping[str, Any]) -> OutboxSample:
    return OutboxSample(
        inserted=int(raw["inserted"] or 0),
        deleted=int(raw["deleted"] or 0),
        live=int(raw["live"] or 0),
        dead=int(raw["dead"] or 0),
        estimated_rows=int(raw["rows"] or 0),
        bytes=int(raw["pages"] or 0) * PAGE_BYTES,
        autovacuum_seconds=raw["autovacuum_seconds"],
        stats_reset_at=raw["stats_reset_at"],
        readable=raw["readable"],
    )
