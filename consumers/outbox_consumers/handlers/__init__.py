"""Calling handlers: routes and upcasts, connection and session, retries, traces."""
