-- Limit how long each statement of this transaction may take, in milliseconds.
SELECT set_config('statement_timeout', %(milliseconds)s::text, true)
