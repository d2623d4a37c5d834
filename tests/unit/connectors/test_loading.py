"""The definition file: what is read, and the one line that anything wrong gets."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from outbox_connectors.definition import Definition, Partitioning, Payload, TableName
from outbox_connectors.errors import DefinitionError, ExitCode
from outbox_connectors.loading import MAX_FILE_BYTES, load, loads
from unit.connectors.definitions import FULL, MINIMAL, definition

ROOT = Path(__file__).parents[3]
SECRET = "hunter2-and-more"


def failure(text: str, **environ: str) -> DefinitionError:
    with pytest.raises(DefinitionError) as caught:
        loads(text, source="outbox.yaml", environ=environ)
    message = str(caught.value)
    assert "\n" not in message
    assert SECRET not in message
    assert caught.value.exit_code is ExitCode.USAGE
    return caught.value


def test_the_shipped_file_loads_without_any_variable() -> None:
    found = load(ROOT / "connectors/outbox.yaml", {})
    assert (found.pipeline, found.postgres.connector.host, found.postgres.connector.port) == (
        "shop",
        "postgres",
        5432,
    )
    assert found.kafka.client == {"bootstrap.servers": "kafka:9092"}
    assert found.connect.url == "http://connect:8083"
    assert found.outbox.writers == ("shop_app",)
    assert found.watch.groups == ("billing",)


def test_the_shipped_file_follows_the_environment() -> None:
    environ = {
        "OUTBOX_CDC_HOST": "127.0.0.1",
        "OUTBOX_CDC_PORT": "15432",
        "OUTBOX_CDC_PASSWORD": SECRET,
        "OUTBOX_KAFKA_BOOTSTRAP": "127.0.0.1:19092",
        "OUTBOX_CONNECT_URL": "http://127.0.0.1:18083/",
    }
    found = load(ROOT / "connectors/outbox.yaml", environ)
    login = found.postgres.connector
    assert (login.host, login.port, login.role_password.value) == ("127.0.0.1", 15432, SECRET)
    assert login.password == "${env:OUTBOX_CDC_PASSWORD}"
    assert found.connect.url == "http://127.0.0.1:18083"
    assert SECRET not in repr(found)


def test_defaults() -> None:
    found = definition()
    assert found.topic_prefix == "shop"
    assert (found.postgres.slot, found.postgres.publication) == ("shop_outbox", "shop_outbox")
    assert found.connect.connector == "shop-outbox"
    assert found.postgres.failover
    assert found.outbox.table == TableName("public", "outbox")
    assert (found.outbox.payload, found.outbox.partition) == (Payload.JSONB, Partitioning.NONE)
    assert found.outbox.keep == timedelta(days=7)
    assert (found.kafka.defaults.partitions, found.kafka.defaults.replication_factor) == (6, 1)
    assert found.kafka.topic_of("order") == "outbox.event.order"
    assert found.watch.ticker == timedelta(seconds=10)
    assert (found.watch.warn_left, found.watch.critical_left) == (timedelta(hours=4), timedelta(hours=1))
    assert found.watch.disk_free_from == "unknown"


def test_every_key_is_read() -> None:
    found = loads(FULL, source="outbox.yaml", environ={})
    assert found.topic_prefix == "p"
    assert found.postgres.admin.value == "host=db user=postgres"
    assert found.postgres.connector.ssl == {"sslrootcert": "/ca.pem"}
    assert not found.postgres.failover
    assert found.outbox.table == TableName("sales", "events")
    assert found.outbox.keep == timedelta(minutes=90)
    assert found.kafka.client["enable.ssl.certificate.verification"] == "true"
    order, payment = found.kafka.aggregates["order"], found.kafka.aggregates["payment"]
    assert (order.name, order.partitions, order.config) == (
        "ev.order.v1",
        12,
        {"retention.ms": "1000", "cleanup.policy": "compact"},
    )
    assert (payment.name, payment.partitions, payment.replication_factor) == ("ev.payment.v1", 3, 3)
    assert found.connect.auth.password.value == "1"
    assert found.connect.config == {"poll.interval.ms": "50"}
    assert found.watch.ticker is None
    assert found.watch.disk_free_from == str(2**30)


def changed(old: str, new: str) -> str:
    assert old in MINIMAL
    return MINIMAL.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("", None, "is empty; connectors/README.md shows what belongs in it"),
        ("# only a comment\n", None, "is empty"),
        ("just words", 1, "must be a mapping"),
        ("- a\n- b\n", 1, "must be a mapping"),
        (changed("  connector:", "  connector"), 4, "broken YAML"),
        ("pipeline: 'shop\n", 2, "broken YAML"),
        ("pipeline: shop\n\tpostgres: x\n", 2, "tab"),
        ("a: {b: ${X}}\n", 1, "put a ${...} there in quotes"),
        ("a: @x\n", 1, "put the value in quotes"),
        ("a: *x\n", 1, "put it in quotes"),
        ("a: !x y\n", 1, "put it in quotes"),
        ("a: &x [*x]\n", 1, "points into itself"),
        ("? [a]\n: b\n", 1, "a key must be a single word"),
        ('"a\\nb": c\n', 1, "a key must be a single word"),
        (MINIMAL + "---\na: b\n", 10, "one pipeline per file"),
        ("a: \x01\n", 1, "a character that YAML does not allow"),
        ("a: " + "[" * 2000 + "\n", None, "nested too deeply"),
        (MINIMAL + "pipeline: other\n", 10, "pipeline is given twice, first on line 1; remove one"),
        (MINIMAL + "outbx: {}\n", 10, "unknown key outbx; did you mean outbox?"),
        (MINIMAL + "slot: x\n", 10, "unknown key slot; known here: connect, kafka"),
        (
            changed("    user:", "    usr: x\n    user:"),
            6,
            "unknown key postgres.connector.usr; did you mean user?",
        ),
        (changed("pipeline: shop\n", ""), 1, "pipeline is missing"),
        (changed("pipeline: shop", "pipeline:"), 1, "pipeline is missing"),
        (changed("pipeline: shop", "pipeline: ''"), 1, "pipeline is empty"),
        (changed("pipeline: shop", "pipeline: My-Shop"), 1, "lower-case letters, digits and underscores"),
        (changed("pipeline: shop", "pipeline: 7"), 1, "YAML takes it for a number; put it in quotes"),
        (changed("pipeline: shop", "pipeline: yes"), 1, "YAML takes it for true or false"),
        (changed("pipeline: shop", "pipeline: [shop]"), 1, "must be a single value, not a list"),
        (changed("    host: db\n", ""), 4, "postgres.connector.host is missing"),
        (changed("host: db", "host: ${NONE}"), 4, "variable NONE is not set; export it, give a default"),
        (changed("host: db", "host: ${}"), 4, "a ${ that is not a reference"),
        (changed("host: db", "host: db\n    port: http"), 5, "write a whole number"),
        (changed("host: db", "host: db\n    port: 70000"), 5, "1 to 65535"),
        (changed("host: db", "host: db\n    sslmode: verify"), 5, "did you mean verify-ca?"),
        (changed("${env:CDC}", SECRET), 7, "let Connect resolve it: ${env:VARIABLE}"),
        (changed("    password: ${env:CDC}\n", ""), 4, "postgres.connector.password is missing"),
        (changed("postgres:\n", "postgres:\n  slot: Shop\n"), 3, "postgres.slot is not usable: 'Shop'"),
        (changed("postgres:\n", f"postgres:\n  publication: {'p' * 64}\n"), 3, "at most 63 bytes"),
        (changed("postgres:\n", "postgres:\n  failover: maybe\n"), 3, "write true or false"),
        (changed("postgres:\n", "postgres: text\nx:\n"), 1, None),
        (MINIMAL + "outbox: {keep: 7}\n", 10, "write it like 30s, 4h, 7 days"),
        (MINIMAL + "outbox: {keep: 0 days}\n", 10, "must be longer than nothing"),
        (MINIMAL + "outbox: {table: a.b.c}\n", 10, "write schema.table"),
        (MINIMAL + "outbox: {table: 'a,b'}\n", 10, "write schema.table"),
        (MINIMAL + "outbox: {payload: xml}\n", 10, "one of jsonb, bytea"),
        (MINIMAL + "outbox: {partition: weekly}\n", 10, "one of none, daily"),
        (MINIMAL + "outbox: {writers: shop_app}\n", 10, "must be a list, not text; write [a, b]"),
        (MINIMAL + "outbox: {writers: [[a]]}\n", 10, "holds a list"),
        (MINIMAL + "outbox: {writers: ['']}\n", 10, "has an empty entry"),
        (MINIMAL + "  topic: events\n", 10, "it must contain {aggregate_type}"),
        (MINIMAL + "  topic: a b {aggregate_type}\n", 10, "besides the placeholder"),
        (MINIMAL + f"  topic: {'x' * 60}{{aggregate_type}}\n", 10, "at most 49 characters"),
        (MINIMAL + "  defaults: {partitions: 0}\n", 10, "1 to 10000"),
        (MINIMAL + "  aggregates: [order]\n", 10, "must be a mapping, not a list"),
        (MINIMAL + "  aggregates: {order: 12}\n", 10, "must be a mapping, not a number"),
        (MINIMAL + "  aggregates: {an order: {}}\n", 10, "not usable as an aggregate type"),
        (MINIMAL + "  aggregates: {a.b: {}, a_b: {}}\n", 10, "Kafka cannot tell apart"),
        (MINIMAL + "  aggregates: {order: {partition: 1}}\n", 10, "did you mean partitions?"),
        (changed('{bootstrap.servers: "kafka:9092"}', "{}"), 9, "has no bootstrap.servers"),
        (changed('"kafka:9092"', "[a, b]"), 9, "must be a single value, not a list"),
        (MINIMAL + "connect: {url: connect}\n", 10, "write http://host:8083"),
        (MINIMAL + "connect: {url: 'http://u:" + SECRET + "@h'}\n", 10, "put it under connect.auth"),
        (MINIMAL + "connect: {auth: {user: u}}\n", 10, "give user and password"),
        (MINIMAL + "connect: {auth: {user: u, password: p, bearer: b}}\n", 10, "keep one"),
        (MINIMAL + "connect: {auth: {key_file: k}}\n", 10, "give cert_file too"),
        (MINIMAL + "connect: {config: {a: }}\n", 10, "write '' for an empty one"),
        (MINIMAL + "connect: {config: {database.password: " + SECRET + "}}\n", 10, "let Connect resolve it"),
        (MINIMAL + "watch: {ticker: 10}\n", 10, "or off"),
        (MINIMAL + "watch: {ticker: 1ms}\n", 10, "1s to 1h, or off"),
        (MINIMAL + "watch: {warn: {seconds_left: 1m}}\n", 10, "warn earlier"),
        (MINIMAL + "watch: {disk: {free_from: half}}\n", 10, "a size like 200GB"),
    ],
)
def test_one_line_for_whatever_is_wrong(text: str, line: int | None, problem: str | None) -> None:
    message = str(failure(text))
    if problem is not None:
        assert problem in message
        assert message.startswith(f"outbox.yaml:{line}: " if line else "outbox.yaml: ")


def test_values_of_variables_are_never_shown() -> None:
    for text in (
        changed("${env:CDC}", "${PW}"),
        changed("host: db", "host: db\n    port: ${PW}"),
        changed("pipeline: shop", "pipeline: ${PW}"),
        MINIMAL + "outbox: {keep: '${PW}'}\n",
        MINIMAL + "connect: {url: '${PW}'}\n",
        MINIMAL + "connect: {url: 'http://u:${PW}@h'}\n",
        MINIMAL + "outbox: {writers: ['${PW}${PW}${PW}${PW}']}\n",
        MINIMAL + "watch: {ticker: '${PW}'}\n",
        MINIMAL + "watch: {disk: {free_from: '${PW}'}}\n",
    ):
        failure(text, PW=SECRET + "-long-enough-to-be-refused-anywhere")


def test_variables_are_not_read_as_yaml() -> None:
    found = definition("outbox: {writers: ['${ROLE}']}\n", {"ROLE": "[a, b]: {c}\n"})
    assert found.outbox.writers == ("[a, b]: {c}\n",)


def test_numbers_may_come_from_variables() -> None:
    text = changed("host: db", "host: ${HOST}\n    port: ${PORT:-5432}")
    found = loads(text, source="x", environ={"HOST": "10", "PORT": "6543"})
    assert (found.postgres.connector.host, found.postgres.connector.port) == ("10", 6543)


def test_anchors_and_merges_work() -> None:
    found = definition(
        "  defaults: &topic {partitions: 3}\n  aggregates:\n    order: {<<: *topic, replication_factor: 2}\n"
    )
    order = found.kafka.aggregates["order"]
    assert (order.partitions, order.replication_factor) == (3, 2)


def test_aliases_are_expanded_once_each() -> None:
    bomb = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 40))
    assert "unknown key a0" in str(failure(bomb))


def test_a_client_certificate_needs_no_password() -> None:
    text = changed("    password: ${env:CDC}\n", "    ssl: {sslcert: /c.pem, sslkey: /k.pem}\n")
    assert loads(text, source="x", environ={}).postgres.connector.password == ""


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("missing.yaml", None, "no such file; name another with -f FILE or $OUTBOX_FILE"),
        (".", None, "is a directory"),
        ("bad\0name", None, "cannot be read"),
        ("latin.yaml", b"pipeline: shop\n# gr\xfc\xdfe\n", ":2: is not UTF-8 text; save it as UTF-8"),
        ("huge.yaml", b"#" * (MAX_FILE_BYTES + 1), "is larger than 1,000,000 bytes"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str, content: bytes | None, problem: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DefinitionError) as caught:
        load(path, {})
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "outbox.yaml"
    path.write_text(MINIMAL, encoding="utf-8-sig")
    assert isinstance(load(path, {}), Definition)


def test_every_error_has_a_place() -> None:
    assert re.match(r"outbox\.yaml:\d+: ", str(failure(changed("host: db", "hots: db"))))
