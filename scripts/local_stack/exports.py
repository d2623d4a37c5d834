"""The environment variables that describe a stack to a shell, a test or a program."""

from __future__ import annotations

import os
import shlex

from local_stack.instance import Instance
from local_stack.ports import HOST
from local_stack.postgres import SUPERUSER


def variables(instance: Instance) -> dict[str, str]:
    """The environment variables that outboxctl, the README and connectors/outbox.yaml use."""
    ports, passwords = instance.ports, instance.passwords()
    return {
        "PGHOST": HOST,
        "PGPORT": str(ports["postgres"]),
        "PGUSER": SUPERUSER,
        "PGPASSWORD": passwords["postgres"],
        "PGDATABASE": "shop",
        "OUTBOX_KAFKA_BOOTSTRAP": f"{HOST}:{ports['kafka']}",
        "OUTBOX_CONNECT_URL": f"http://{HOST}:{ports['connect']}",
        "OUTBOX_CDC_HOST": HOST,
        "OUTBOX_CDC_PORT": str(ports["postgres"]),
        "OUTBOX_CDC_PASSWORD": passwords["cdc"],
        "OUTBOX_APP_PASSWORD": passwords["app"],
    }


def exports(instance: Instance, path: str) -> str:
    """Shell code for `eval`: the variables, and PATH with outboxctl on it unless `path` has it already."""
    values = variables(instance)
    programs = str(instance.layout.repository / ".venv" / "bin")
    if programs not in path.split(os.pathsep):
        values["PATH"] = f"{programs}{os.pathsep}{path}"
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())
