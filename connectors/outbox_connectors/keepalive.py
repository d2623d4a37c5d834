"""TCP time limits for a PostgreSQL host that stops answering because the machine or the network failed.

Without them a session notices only after about 15 minutes while it sends (tcp_retries2) or after more than
two hours while it waits for an answer (tcp_keepalive_time); psycopg itself has no time limit. A server that
is merely slow is not affected: its kernel answers. They also keep a firewall from dropping an idle session.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# libpq's connection parameters (PostgreSQL documentation, 32.1.2), in seconds; tcp_user_timeout in
# milliseconds.
KEEPALIVE: Final = {
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}


def kept_alive(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Add the time limits to connection parameters; parameters that are already set keep their value."""
    return {**KEEPALIVE, **settings}
