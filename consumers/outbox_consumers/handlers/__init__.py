"""How a handler is called: its route, its connection and session, retries, payload versions, traces."""
