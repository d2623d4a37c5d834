-- Wake the relay at the end of each transaction that wrote into the outbox.
CREATE TRIGGER wake_relay AFTER INSERT ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION {notify}({channel})
