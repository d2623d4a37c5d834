"""Events written through SQLAlchemy 2 and Django 5.2, in their own transactions, rolled back with them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import django as django_package
import psycopg
import pytest
import sqlalchemy as sa
from django.conf import settings as django_settings
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from fix_stack import Database
from outbox_connectors import loading
from outbox_pipeline import outbox
from outbox_pipeline.errors import UsageError
from outbox_pipeline.provision import tables

pytestmark = pytest.mark.stack

DEFINITION = loading.load(Path(__file__).parents[2] / "connectors" / "outbox.yaml", {})


class Declined(Exception):
    """What makes a test's transaction roll back."""


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]


@pytest.fixture
def shop(database: Database) -> Database:
    with database.connect() as conn:
        for statement in tables.ddl(DEFINITION.outbox, date(2026, 11, 29)):
            conn.execute(statement)
        conn.execute("CREATE TABLE orders (id int PRIMARY KEY, total int NOT NULL)")
    return database


def committed(shop: Database) -> tuple[list[int], list[tuple[str, Any]]]:
    """The orders, and the aggregate ids and payloads of the events, that another session sees."""
    with shop.connect() as conn:
        orders = [row[0] for row in conn.execute("SELECT id FROM orders ORDER BY id")]
        events = conn.execute("SELECT aggregate_id, payload FROM outbox ORDER BY position").fetchall()
    return orders, [(row[0], row[1]) for row in events]


def placed(number: int, total: int) -> outbox.Event:
    return outbox.event(
        aggregate_type="order",
        aggregate_id=str(number),
        event_type="OrderPlaced",
        payload={"total": total, "note": "100% :sure? $1 \\ 'quoted'"},
        headers={"tenant": "acme"},
    )


NOTE = {"note": "100% :sure? $1 \\ 'quoted'"}


@pytest.fixture
def engine(shop: Database) -> Iterator[sa.Engine]:
    engine = sa.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(shop.conninfo))
    yield engine
    engine.dispose()


def test_sqlalchemy_on_the_sessions_own_connection(engine: sa.Engine, shop: Database) -> None:
    with Session(engine) as session:
        session.add(Order(id=1, total=99))
        raw = session.connection().connection.driver_connection
        assert isinstance(raw, psycopg.Connection)
        outbox.add(
            raw, aggregate_type="order", aggregate_id="1", event_type="OrderPlaced", payload={"total": 99}
        )
        assert committed(shop) == ([], [])
        session.commit()
    assert committed(shop) == ([1], [("1", {"total": 99})])


def test_sqlalchemy_rolls_both_back(engine: sa.Engine, shop: Database) -> None:
    with contextlib.suppress(Declined), Session(engine) as session, session.begin():
        session.add(Order(id=1, total=99))
        session.flush()
        raw = session.connection().connection.driver_connection
        assert isinstance(raw, psycopg.Connection)
        outbox.add_many(raw, [placed(1, 99)])
        raise Declined
    assert committed(shop) == ([], [])


def test_sqlalchemy_with_a_statement(engine: sa.Engine, shop: Database) -> None:
    with Session(engine) as session:
        for number in (1, 2):
            session.add(Order(id=number, total=99))
            text, values = outbox.statement(placed(number, 99), "named")
            session.execute(sa.text(text), values)
            if number == 1:
                session.commit()
        session.rollback()
    assert committed(shop) == ([1], [("1", {"total": 99, **NOTE})])


@pytest.fixture
def django(shop: Database) -> Iterator[BaseDatabaseWrapper]:
    """Django's connection to the test's database, under the alias `default`."""
    if not django_settings.configured:
        django_settings.configure(USE_TZ=True, DATABASES={})
        django_package.setup()
    at = conninfo_to_dict(shop.conninfo)
    default = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": at["dbname"],
        "USER": at["user"],
        "PASSWORD": at["password"],
        "HOST": at["host"],
        "PORT": at["port"],
    }
    connections.settings.update(connections.configure_settings({"default": default}))
    yield connections["default"]
    connections["default"].close()
    del connections["default"]


def test_django_with_a_statement(django: BaseDatabaseWrapper, shop: Database) -> None:
    with transaction.atomic(), django.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (1, 99)")
        cursor.execute(*outbox.statement(placed(1, 99)))
        assert committed(shop) == ([], [])
    assert committed(shop) == ([1], [("1", {"total": 99, **NOTE})])


def test_django_with_positional_parameters_and_a_tombstone(
    django: BaseDatabaseWrapper, shop: Database
) -> None:
    event = outbox.event(aggregate_type="order", aggregate_id="1", event_type="OrderForgotten", payload=None)
    with transaction.atomic(), django.cursor() as cursor:
        cursor.execute(*outbox.statement(event, "format"))
    assert committed(shop) == ([], [("1", None)])


def test_django_rolls_both_back(django: BaseDatabaseWrapper, shop: Database) -> None:
    with contextlib.suppress(Declined), transaction.atomic(), django.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (1, 99)")
        cursor.execute(*outbox.statement(placed(1, 99)))
        raise Declined
    assert committed(shop) == ([], [])


def test_django_rolls_an_inner_block_back_alone(django: BaseDatabaseWrapper, shop: Database) -> None:
    with transaction.atomic(), django.cursor() as cursor:
        cursor.execute(*outbox.statement(placed(1, 99)))
        with contextlib.suppress(Declined), transaction.atomic():
            cursor.execute(*outbox.statement(placed(2, 99)))
            raise Declined
    assert [aggregate_id for aggregate_id, _ in committed(shop)[1]] == ["1"]


def test_django_on_its_own_psycopg_connection(django: BaseDatabaseWrapper, shop: Database) -> None:
    """In autocommit mode, which is Django's own default, add() refuses; inside atomic() it works."""
    django.ensure_connection()
    with pytest.raises(UsageError, match="autocommit"):
        outbox.add_many(django.connection, [placed(1, 5)])
    with transaction.atomic():
        outbox.add_many(django.connection, [placed(2, 5), placed(3, 5)])
    assert [aggregate_id for aggregate_id, _ in committed(shop)[1]] == ["2", "3"]
