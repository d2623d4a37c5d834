"""The demo: a shop writes orders, billing consumes them, processes are killed, event ids are compared."""
