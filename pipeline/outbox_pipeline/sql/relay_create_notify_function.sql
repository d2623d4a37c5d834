-- Create the function that wakes the relay: one notification per transaction, however many statements it has.
CREATE FUNCTION {notify}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_catalog.pg_notify(TG_ARGV[0], '');
    RETURN NULL;
END
$$
