"""Kafka Connect: its REST interface, a connector's configuration and life, and its stored position."""

from outbox_pipeline.connect.client import ConnectClient

__all__ = ["ConnectClient"]
