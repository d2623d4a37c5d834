-- Be woken by transactions that wrote into the outbox.
LISTEN {channel}
