"""The report of an audit, the comparison of ids, and the files that keep them small."""

from __future__ import annotations

import random
from pathlib import Path

from outbox_connectors.errors import ExitCode
from outbox_pipeline.ids.comparison import ComparedIds, compare, missing_ids
from outbox_pipeline.ids.spool import Spool, temporary_spool
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


def test_report() -> None:
    report = AuditReport()
    report.add(ComparedIds(set(ids(1, 2, 3)), ids(2, 3, 3, 9)), ids(2), kept=True)
    assert (report.written, report.delivered, report.applied) == (3, 3, 1)
    assert (report.missing, report.duplicated, report.unexpected, report.unapplied) == (1, 1, 1, 2)
    assert report.missing_ids == ids(1)
    assert report.exit_code is ExitCode.CRITICAL
    report.arrived(ids(1, 77))
    assert (report.missing, report.missing_ids, report.delivered) == (0, [], 4)


def test_rows_that_were_deleted_after_delivery_are_not_unexpected() -> None:
    report = AuditReport()
    report.add(ComparedIds(set(), ids(1, 2)), None, kept=False)
    assert report.unexpected == 0
    assert report.applied is None
    assert report.exit_code is ExitCode.OK


def test_lists_end_and_counts_do_not() -> None:
    report = AuditReport()
    report.add(ComparedIds(set(ids(*range(MAX_LISTED + 5))), []), None, kept=True)
    assert report.missing == MAX_LISTED + 5
    assert len(report.document()["missing"]) == MAX_LISTED


def test_rows_and_records_are_compared_by_id_whatever_bucket_they_are_in() -> None:
    rng = random.Random(11)
    published, missing, foreign = ([rng.randbytes(16) for _ in range(3000)] for _ in range(3))
    with temporary_spool() as rows, temporary_spool() as records:
        rows.add(published + missing)
        records.add(foreign + published + published[:7])
        for _ in range(2):  # a comparison can be repeated
            parts = list(compare(rows, records))
            assert sorted(one for part in parts for one in part.published) == sorted(published)
            assert sorted(one for part in parts for one in part.missing) == sorted(missing)
        records.add(missing)  # and sees what has come since
        assert not any(part.missing for part in compare(rows, records))


def test_chunks_are_read_only_until_every_id_is_found() -> None:
    chunks = iter([ids(1, 9), ids(2), ids(3)])
    assert missing_ids(set(ids(1, 2)), chunks) == set()
    assert list(chunks) == [ids(3)]
    assert missing_ids(set(ids(1, 2)), iter([ids(2, 8)])) == set(ids(1))
