"""Shared by all tests; fixtures that need servers live in the fix_*.py plug-ins beside this file."""

from __future__ import annotations

pytest_plugins = [
    "fix_stack",
    "fix_provision",
    "fix_consumer",
    "fix_connector",
    "fix_scenarios",
    "fix_scene",
    "fix_relay",
]
