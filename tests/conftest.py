"""Shared by all tests; fixtures that need servers live in the fix_*.py plug-ins beside this file."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

pytest_plugins = [
    "fix_stack",
    "fix_provision",
    "fix_consumer",
    "fix_durable",
    "fix_connector",
    "fix_scenarios",
    "fix_scene",
    "fix_relay",
]


# How long an example takes is the machine's affair.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_configure() -> None:
    """Heed SIGINT in the programs that tests start: a job in the background hands on that it is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
