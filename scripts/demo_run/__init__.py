"""The demo: a shop writes, billing consumes, processes are killed, and a ledger compares the ids."""
