"""The trial of compose.yaml on a real engine: what `make compose-test` runs."""
