"""What a shell, a test or a program must know about a stack."""

from __future__ import annotations

import shlex

from local_stack.instance import Instance
from local_stack.ports import HOST
from local_stack.postgres import SUPERUSER


def variables(instance: Instance) -> dict[str, str]:
    """The environment that the command line, the README and connectors/outbox.yaml use."""
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


def exports(instance: Instance) -> str:
    """Shell code for `eval`: the variables, and outboxctl on PATH (once, however often it is run)."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables(instance).items()]
    programs = shlex.quote(str(instance.layout.repository / ".venv" / "bin"))
    lines.append(f'case ":$PATH:" in *:{programs}:*) ;; *) export PATH={programs}:"$PATH" ;; esac')
    return "\n".join(lines) + "\n"
