"""The road: write, provision, watch, recover, relay."""
