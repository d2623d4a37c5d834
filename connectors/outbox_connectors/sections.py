"""From the tree of a definition file to `Definition`: which keys there are, and what each may hold.

`KEYS` is the list of keys; `outbox.schema.json` describes the same ones for editors, a test keeps
the two equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

from outbox_connectors import quantities, record
from outbox_connectors.definition import (
    Connect,
    ConnectAuth,
    ConnectorLogin,
    Definition,
    Kafka,
    Outbox,
    Partitioning,
    Payload,
    Postgres,
    TableName,
    TopicSpec,
    Watch,
)
from outbox_connectors.document import Members, Section, nearest
from outbox_connectors.interpolation import refers_to_provider

KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("pipeline", "postgres", "outbox", "kafka", "connect", "watch"),
    "postgres": ("admin", "connector", "slot", "publication", "failover", "restrict_messages"),
    "postgres.connector": (
        "host",
        "port",
        "database",
        "user",
        "password",
        "role_password",
        "sslmode",
        "ssl",
    ),
    "postgres.connector.ssl": ("sslrootcert", "sslcert", "sslkey", "sslpassword"),
    "outbox": ("table", "writers", "payload", "partition", "keep"),
    "kafka": ("client", "topic", "defaults", "aggregates"),
    "kafka.defaults": ("partitions", "replication_factor", "config"),
    "kafka.aggregates.*": ("partitions", "replication_factor", "config"),
    "connect": ("url", "connector", "topic_prefix", "auth", "config"),
    "connect.auth": ("user", "password", "bearer", "ca_file", "cert_file", "key_file"),
    "watch": ("ticker", "roles", "warn", "critical", "groups", "disk"),
    "watch.warn": ("seconds_left",),
    "watch.critical": ("seconds_left",),
    "watch.disk": ("free_from",),
}

SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
DEFAULT_TOPIC: Final = "outbox.event.{aggregate_type}"
_PLACEHOLDER: Final = "{aggregate_type}"
_DURATION: Final = "write it like 30s, 4h, 7 days or 1h 30m"


def definition_of(tree: Members, source: str) -> Definition:
    """Build the definition. Raises DefinitionError at the first thing that is wrong."""
    root = Section(tree, "", KEYS[""])
    pipeline = root.name("pipeline", _pipeline_name)
    postgres = root.section("postgres", KEYS["postgres"], required=True)
    connect = root.section("connect", KEYS["connect"])
    prefix = connect.name("topic_prefix", _word(200), pipeline)
    return Definition(
        pipeline=pipeline,
        topic_prefix=prefix,
        source=source,
        postgres=_postgres(postgres, pipeline),
        outbox=_outbox(root.section("outbox", KEYS["outbox"])),
        kafka=_kafka(root.section("kafka", KEYS["kafka"], required=True)),
        connect=_connect(connect, pipeline),
        watch=_watch(root.section("watch", KEYS["watch"])),
    )


# -- names -------------------------------------------------------------------------------------------
# Each returns "" for a usable name, else what a usable one looks like.


def _pipeline_name(name: str) -> str:
    # `_outbox` is added for the slot, whose name PostgreSQL keeps within 63 of these characters.
    usable = re.fullmatch(r"[a-z0-9_]{1,56}", name)
    return "" if usable else "use at most 56 lower-case letters, digits and underscores"


def _slot_name(name: str) -> str:
    usable = re.fullmatch(r"[a-z0-9_]{1,63}", name)
    return "" if usable else "use at most 63 lower-case letters, digits and underscores"


def _identifier(name: str) -> str:
    usable = 0 < len(name.encode()) <= 63 and "\0" not in name
    return "" if usable else "use at most 63 bytes"


def _publication_name(name: str) -> str:
    # Debezium passes it to pgoutput inside a comma-separated list of names.
    usable = not _identifier(name) and re.fullmatch(r"\w[\w-]*", name)
    return "" if usable else "use at most 63 bytes of letters, digits, '_' and '-'"


def _table_name(name: str) -> str:
    # Debezium replaces other characters when it derives a topic from the name, and lists are split at
    # commas; a name that survives both unchanged cannot be misread.
    parts = name.split(".")
    usable = len(parts) <= 2 and all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,62}", part) for part in parts)
    return "" if usable else "write schema.table, each of letters, digits, '_' and '-'"


def _aggregate_name(name: str) -> str:
    usable = re.fullmatch(record.AGGREGATE_TYPE_PATTERN, name) and name not in (".", "..")
    if usable and len(name) <= record.MAX_AGGREGATE_TYPE:
        return ""
    return f"use at most {record.MAX_AGGREGATE_TYPE} letters, digits, '.', '_' and '-'"


def _word(limit: int) -> Callable[[str], str]:
    def check(name: str) -> str:
        usable = re.fullmatch(rf"[A-Za-z0-9._-]{{1,{limit}}}", name)
        return "" if usable else f"use at most {limit} letters, digits, '.', '_' and '-'"

    return check


def _topic_template(template: str) -> str:
    before, placeholder, after = template.partition(_PLACEHOLDER)
    rest = before + after
    room = record.MAX_TOPIC - record.MAX_AGGREGATE_TYPE
    if not placeholder:
        return f"it must contain {_PLACEHOLDER}"
    if rest and not re.fullmatch(r"[a-zA-Z0-9._-]+", rest):
        return "besides the placeholder use letters, digits, '.', '_' and '-'"
    return "" if len(rest) <= room else f"use at most {room} characters besides the placeholder"


def _ssl_mode(mode: str) -> str:
    return "" if mode in SSL_MODES else nearest(mode, SSL_MODES)


def _base_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        return "write http://host:8083 or https://host/path"
    usable = parts.scheme in ("http", "https") and parts.hostname and port_ok
    usable = usable and not parts.query and not parts.fragment and not re.search(r"\s", url)
    return "" if usable else "write http://host:8083 or https://host/path"


# -- sections ----------------------------------------------------------------------------------------


def _postgres(section: Section, pipeline: str) -> Postgres:
    login = section.section("connector", KEYS["postgres.connector"], required=True)
    return Postgres(
        admin=section.secret("admin"),
        connector=_login(login),
        slot=section.name("slot", _slot_name, f"{pipeline}_outbox"),
        publication=section.name("publication", _publication_name, f"{pipeline}_outbox"),
        failover=section.flag("failover", default=True),
        restrict_messages=section.flag("restrict_messages", default=True),
    )


def _login(section: Section) -> ConnectorLogin:
    ssl = section.section("ssl", KEYS["postgres.connector.ssl"])
    files = {key: ssl.text(key, "") for key in KEYS["postgres.connector.ssl"]}
    _refuse_literal(ssl, "sslpassword", files["sslpassword"])
    password = section.text("password") if not files["sslcert"] else section.text("password", "")
    _refuse_literal(section, "password", password)
    return ConnectorLogin(
        host=section.text("host"),
        port=section.integer("port", 5432, 1, 65535),
        database=section.name("database", _identifier),
        user=section.name("user", _identifier),
        password=password,
        role_password=section.secret("role_password"),
        sslmode=section.name("sslmode", _ssl_mode, "prefer"),
        ssl={key: value for key, value in files.items() if value},
    )


def _refuse_literal(section: Section, key: str, value: str) -> None:
    if value and not refers_to_provider(value):
        raise section.fault(
            key,
            "would be readable by anybody through Connect's REST API",
            "let Connect resolve it: ${env:VARIABLE} or ${file:/path/on/the/worker.properties:key}",
        )


def _outbox(section: Section) -> Outbox:
    schema, _, name = section.name("table", _table_name, "public.outbox").rpartition(".")
    keep = section.parsed("keep", quantities.duration, timedelta(days=7), _DURATION)
    if keep <= timedelta():
        raise section.fault("keep", "must be longer than nothing", _DURATION)
    return Outbox(
        table=TableName(schema or "public", name),
        writers=section.names("writers", _identifier),
        payload=section.choice("payload", Payload, Payload.JSONB),
        partition=section.choice("partition", Partitioning, Partitioning.NONE),
        keep=keep,
    )


def _kafka(section: Section) -> Kafka:
    client = section.properties("client")
    if not client.get("bootstrap.servers"):
        raise section.fault("client", "has no bootstrap.servers", 'add bootstrap.servers: "host:9092"')
    template = section.name("topic", _topic_template, DEFAULT_TOPIC)
    defaults = _topic(
        section.section("defaults", KEYS["kafka.defaults"]),
        template,
        TopicSpec(template, partitions=6, replication_factor=1, config={}),
    )
    aggregates: dict[str, TopicSpec] = {}
    metrics: dict[str, str] = {}
    for name, part in section.sections("aggregates", KEYS["kafka.aggregates.*"]).items():
        remedy = _aggregate_name(name)
        if remedy:
            raise section.key_fault("aggregates", name, "is not usable as an aggregate type", remedy)
        topic = template.replace(_PLACEHOLDER, name)
        # Kafka refuses a topic whose name equals another one's when dots are read as underscores.
        twin = metrics.setdefault(topic.replace(".", "_"), name)
        if twin != name:
            problem = f"and {twin} give topics that Kafka cannot tell apart"
            raise section.key_fault("aggregates", name, problem, "use '.' or '_' alike in both")
        aggregates[name] = _topic(part, topic, defaults)
    return Kafka(client=client, topic=template, defaults=defaults, aggregates=aggregates)


def _topic(section: Section, name: str, defaults: TopicSpec) -> TopicSpec:
    return TopicSpec(
        name=name,
        partitions=section.integer("partitions", defaults.partitions, 1, 10_000),
        replication_factor=section.integer("replication_factor", defaults.replication_factor, 1, 100),
        config={**defaults.config, **section.properties("config")},
    )


def _connect(section: Section, pipeline: str) -> Connect:
    url = section.text("url", "http://connect:8083").rstrip("/")
    if "@" in url:
        raise section.fault("url", "carries a login", "put it under connect.auth")
    remedy = _base_url(url)
    if remedy:
        raise section.fault("url", f"is not usable: {section.shown('url', url)}", remedy)
    config = section.properties("config")
    for key in ("database.password", "database.sslpassword"):
        if config.get(key) and not refers_to_provider(config[key]):
            raise section.key_fault(
                "config",
                key,
                "would be readable by anybody through Connect's REST API",
                "let Connect resolve it: ${env:VARIABLE}",
            )
    return Connect(
        url=url,
        connector=section.name("connector", _word(200), f"{pipeline}-outbox"),
        auth=_auth(section.section("auth", KEYS["connect.auth"])),
        config=config,
    )


def _auth(section: Section) -> ConnectAuth:
    auth = ConnectAuth(
        user=section.text("user", ""),
        password=section.secret("password"),
        bearer=section.secret("bearer"),
        ca_file=section.text("ca_file", ""),
        cert_file=section.text("cert_file", ""),
        key_file=section.text("key_file", ""),
    )
    if auth.bearer and auth.user:
        raise section.fault("bearer", "and user are both given", "keep one")
    if bool(auth.user) != bool(auth.password):
        raise section.fault("user" if auth.user else "password", "stands alone", "give user and password")
    if auth.key_file and not auth.cert_file:
        raise section.fault("key_file", "stands alone", "give cert_file too")
    return auth


def _watch(section: Section) -> Watch:
    warn = section.section("warn", KEYS["watch.warn"])
    critical = section.section("critical", KEYS["watch.critical"])
    disk = section.section("disk", KEYS["watch.disk"])
    warn_left = warn.parsed("seconds_left", quantities.duration, timedelta(hours=4), _DURATION)
    critical_left = critical.parsed("seconds_left", quantities.duration, timedelta(hours=1), _DURATION)
    if critical_left > warn_left:
        raise critical.fault("seconds_left", "is longer than watch.warn.seconds_left", "warn earlier")
    return Watch(
        ticker=_ticker(section),
        roles=section.names("roles", _identifier),
        warn_left=warn_left,
        critical_left=critical_left,
        groups=section.texts("groups"),
        disk_free_from=disk.parsed(
            "free_from", _free_from, "unknown", "write unknown, an absolute path, or a size like 200GB"
        ),
    )


def _ticker(section: Section) -> timedelta | None:
    usual: timedelta | None = timedelta(seconds=10)
    ticker = section.parsed("ticker", _ticker_period, usual, f"{_DURATION}, or off")
    if ticker is not None and not timedelta(seconds=1) <= ticker <= timedelta(hours=1):
        raise section.fault("ticker", "is out of range", "1s to 1h, or off")
    return ticker


def _ticker_period(text: str) -> timedelta | None:
    return None if text.lower() in ("off", "no", "false") else quantities.duration(text)


def _free_from(text: str) -> str:
    if text == "unknown" or text.startswith("/"):
        return text
    return str(quantities.size(text))
