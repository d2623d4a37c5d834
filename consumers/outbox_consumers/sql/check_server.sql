-- Read what decides whether a consumer can work here: writable, inbox present, its key, our rights on it.
SELECT pg_is_in_recovery() AS standby,
       current_setting('transaction_read_only') = 'on' AS read_only,
       current_setting('synchronous_commit') AS synchronous_commit,
       to_regclass(%(inbox)s) IS NOT NULL AS present,
       COALESCE(has_table_privilege(to_regclass(%(inbox)s), 'INSERT'), false) AS may_insert,
       COALESCE(has_table_privilege(to_regclass(%(inbox)s), 'SELECT'), false) AS may_select,
       COALESCE(has_table_privilege(to_regclass(%(inbox)s), 'DELETE'), false) AS may_delete,
       ARRAY(
           SELECT attname::text
           FROM pg_index AS i, unnest(i.indkey) WITH ORDINALITY AS k(number, place)
           JOIN pg_attribute AS a ON a.attnum = k.number
           WHERE i.indrelid = to_regclass(%(inbox)s) AND a.attrelid = i.indrelid AND i.indisprimary
           ORDER BY k.place
       ) AS key
