"""The books of an audit, and the files that keep them small."""

from __future__ import annotations

import random
from pathlib import Path

from outbox_connectors.errors import ExitCode
from outbox_pipeline.ids.spool import Spool
from outbox_pipeline.operations.audit_report import MAX_LISTED, AuditReport


def ids(*numbers: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in numbers]


def test_every_id_comes_back_and_equal_ids_meet_in_one_bucket(tmp_path: Path) -> None:
    rng = random.Random(7)
    some = [rng.randbytes(16) for _ in range(60_000)]
    with Spool(tmp_path / "a") as first, Spool(tmp_path / "b") as second:
        first.add(some)
        second.add(reversed(some))
        assert first.count == len(some)
        found: list[bytes] = []
        for left, right in zip(first.buckets(), second.buckets(), strict=True):
            assert sorted(left) == sorted(right)
            found += left
    assert sorted(found) == sorted(some)


def test_books() -> None:
    books = AuditReport()
    books.enter(ids(1, 2, 3), [*ids(2, 3, 3, 9)], ids(2), kept=True)
    assert (books.written, books.delivered, books.applied) == (3, 3, 1)
    assert (books.missing, books.duplicated, books.unexpected, books.unapplied) == (1, 1, 1, 2)
    assert books.missing_ids == ids(1)
    assert books.exit_code is ExitCode.CRITICAL
    books.arrived(ids(1, 77))
    assert (books.missing, books.missing_ids, books.delivered) == (0, [], 4)


def test_rows_that_were_deleted_after_delivery_are_not_unexpected() -> None:
    books = AuditReport()
    books.enter(ids(), ids(1, 2), None, kept=False)
    assert books.unexpected == 0
    assert books.applied is None
    assert books.exit_code is ExitCode.OK


def test_lists_end_and_counts_do_not() -> None:
    books = AuditReport()
    books.enter(ids(*range(MAX_LISTED + 5)), [], None, kept=True)
    assert books.missing == MAX_LISTED + 5
    assert len(books.document()["missing"]) == MAX_LISTED
