"""How long a session waits for a PostgreSQL host that has fallen silent: machine or network are gone.

Without these a statement that was sent comes back after some 15 minutes (tcp_retries2), one whose answer is
awaited after more than two hours (tcp_keepalive_time); psycopg itself waits without an end. A server that is
merely slow is not silent: its kernel answers. They also keep a firewall from forgetting an idle session.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# libpq's connection parameters (PostgreSQL documentation, 32.1.2), in seconds but for the time-out's ms.
KEEPALIVE: Final = {
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}


def kept_alive(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Complete connection parameters; what they say already stands."""
    return {**KEEPALIVE, **settings}
