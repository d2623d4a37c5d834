-- Wait until no transaction has written into the outbox without being committed, and let none begin to.
LOCK TABLE {table} IN SHARE MODE
