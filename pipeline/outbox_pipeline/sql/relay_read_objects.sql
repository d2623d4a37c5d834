-- Read which of the relay's objects exist, and the expression of its index.
SELECT
    to_regclass(%(settings)s) IS NOT NULL AS settings,
    to_regclass(%(batch)s) IS NOT NULL AS batch,
    to_regclass(%(dead_letter)s) IS NOT NULL AS dead_letter,
    to_regclass(%(history)s) IS NOT NULL AS history,
    to_regprocedure(%(notify)s) IS NOT NULL AS notify,
    (SELECT pg_get_indexdef(indexrelid, 1, true) FROM pg_index WHERE indexrelid = to_regclass(%(index)s)) AS shard_of,
    coalesce((SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%(index)s)), false) AS index_valid,
    EXISTS (
        SELECT FROM pg_trigger
        WHERE tgrelid = to_regclass(%(table)s) AND tgname = 'wake_relay' AND tgenabled IN ('O', 'A')
    ) AS wakes
