"""Tests compose.yaml on a real Docker engine; `make compose-test` runs it."""
