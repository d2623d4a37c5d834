"""Build the `Definition` from the tree of a definition file, and check rules that involve several keys.

The keys with their types and defaults are listed in `keys`.
"""

from __future__ import annotations

from datetime import timedelta

from outbox_connectors import quantities, value_types
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
    WatchSection,
)
from outbox_connectors.document import Members, Section
from outbox_connectors.interpolation import refers_to_provider
from outbox_connectors.keys import SECTIONS


def definition_of(tree: Members, source: str) -> Definition:
    """Build the definition. Raises DefinitionError for the first invalid value."""
    root = Section(tree, "")
    pipeline = root.text("pipeline")
    postgres = root.section("postgres")
    connect = root.section("connect")
    prefix = connect.text("topic_prefix", pipeline=pipeline)
    return Definition(
        pipeline=pipeline,
        topic_prefix=prefix,
        source=source,
        postgres=_postgres(postgres, pipeline),
        outbox=_outbox(root.section("outbox")),
        kafka=_kafka(root.section("kafka")),
        connect=_connect(connect, pipeline),
        watch=_watch(root.section("watch")),
    )


def _postgres(section: Section, pipeline: str) -> Postgres:
    login = section.section("connector")
    return Postgres(
        admin=section.secret("admin"),
        connector=_login(login),
        slot=section.text("slot", pipeline=pipeline),
        publication=section.text("publication", pipeline=pipeline),
        failover=section.flag("failover"),
        restrict_messages=section.flag("restrict_messages"),
    )


def _login(section: Section) -> ConnectorLogin:
    ssl = section.section("ssl")
    files = {key: ssl.text(key) for key in SECTIONS[ssl.path]}
    _refuse_literal(ssl, "sslpassword", files["sslpassword"])
    password = section.text("password", required=not files["sslcert"])
    _refuse_literal(section, "password", password)
    return ConnectorLogin(
        host=section.text("host"),
        port=section.integer("port"),
        database=section.text("database"),
        user=section.text("user"),
        password=password,
        role_password=section.secret("role_password"),
        sslmode=section.text("sslmode"),
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
    schema, _, name = section.text("table").rpartition(".")
    keep = section.parsed("keep", quantities.duration)
    if keep <= timedelta():
        raise section.fault("keep", "must be longer than nothing", value_types.DURATION.remedy)
    return Outbox(
        table=TableName(schema or "public", name),
        writers=section.texts("writers"),
        payload=section.parsed("payload", Payload),
        partition=section.parsed("partition", Partitioning),
        keep=keep,
    )


def _kafka(section: Section) -> Kafka:
    client = section.properties("client")
    if not client.get("bootstrap.servers"):
        raise section.fault("client", "has no bootstrap.servers", 'add bootstrap.servers: "host:9092"')
    template = section.text("topic")
    defaults = _topic(section.section("defaults"), template)
    aggregates: dict[str, TopicSpec] = {}
    metrics: dict[str, str] = {}
    for name, part in section.sections("aggregates").items():
        remedy = value_types.is_aggregate_type(name)
        if remedy:
            raise section.key_fault("aggregates", name, "is not usable as an aggregate type", remedy)
        topic = template.replace(value_types.TOPIC_PLACEHOLDER, name)
        # Kafka refuses a topic whose name equals another one's when dots are read as underscores.
        twin = metrics.setdefault(topic.replace(".", "_"), name)
        if twin != name:
            problem = f"and {twin} give topics that Kafka cannot tell apart"
            raise section.key_fault("aggregates", name, problem, "use '.' or '_' alike in both")
        aggregates[name] = _topic(part, topic, defaults)
    return Kafka(client=client, topic=template, defaults=defaults, aggregates=aggregates)


def _topic(section: Section, name: str, defaults: TopicSpec | None = None) -> TopicSpec:
    return TopicSpec(
        name=name,
        partitions=section.integer("partitions", defaults.partitions if defaults else None),
        replication_factor=section.integer(
            "replication_factor", defaults.replication_factor if defaults else None
        ),
        config={**(defaults.config if defaults else {}), **section.properties("config")},
    )


def _connect(section: Section, pipeline: str) -> Connect:
    url = section.text("url").rstrip("/")
    if "@" in url:
        raise section.fault("url", "carries a login", "put it under connect.auth")
    remedy = value_types.is_base_url(url)
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
        connector=section.text("connector", pipeline=pipeline),
        auth=_auth(section.section("auth")),
        config=config,
    )


def _auth(section: Section) -> ConnectAuth:
    auth = ConnectAuth(
        user=section.text("user"),
        password=section.secret("password"),
        bearer=section.secret("bearer"),
        ca_file=section.text("ca_file"),
        cert_file=section.text("cert_file"),
        key_file=section.text("key_file"),
    )
    if auth.bearer and auth.user:
        raise section.fault("bearer", "and user are both given", "keep one")
    if bool(auth.user) != bool(auth.password):
        raise section.fault("user" if auth.user else "password", "stands alone", "give user and password")
    if auth.key_file and not auth.cert_file:
        raise section.fault("key_file", "stands alone", "give cert_file too")
    return auth


def _watch(section: Section) -> WatchSection:
    warn = section.section("warn")
    critical = section.section("critical")
    disk = section.section("disk")
    warn_left = warn.parsed("seconds_left", quantities.duration)
    critical_left = critical.parsed("seconds_left", quantities.duration)
    if critical_left > warn_left:
        raise critical.fault("seconds_left", "is longer than watch.warn.seconds_left", "warn earlier")
    return WatchSection(
        ticker=_ticker(section),
        roles=section.texts("roles"),
        warn_left=warn_left,
        critical_left=critical_left,
        groups=section.texts("groups"),
        disk_free_from=disk.parsed("free_from", _free_from),
    )


def _ticker(section: Section) -> timedelta | None:
    ticker = section.parsed("ticker", _ticker_period)
    if ticker is not None and not timedelta(seconds=1) <= ticker <= timedelta(hours=1):
        raise section.fault("ticker", "is out of range", "1s to 1h, or off")
    return ticker


def _ticker_period(text: str) -> timedelta | None:
    return None if text.lower() in ("off", "no", "false") else quantities.duration(text)


def _free_from(text: str) -> str:
    if text == "unknown" or text.startswith("/"):
        return text
    return str(quantities.size(text))
