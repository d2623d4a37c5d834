-- Check whether a consumer can work here: the server is writable, the tables exist, their key and our rights.
SELECT pg_is_in_recovery() AS standby,
       current_setting('transaction_read_only') = 'on' AS read_only,
       current_setting('synchronous_commit') AS synchronous_commit,
       ARRAY(
           SELECT attname::text
           FROM pg_index AS i, unnest(i.indkey) WITH ORDINALITY AS k(number, place)
           JOIN pg_attribute AS a ON a.attnum = k.number
           WHERE i.indrelid = to_regclass(%(inbox)s) AND a.attrelid = i.indrelid AND i.indisprimary
           ORDER BY k.place
       ) AS key,
       ARRAY(
           SELECT name FROM unnest(%(tables)s::text[]) AS name WHERE to_regclass(name) IS NULL
       ) AS missing,
       ARRAY(
           SELECT name FROM unnest(%(tables)s::text[]) AS name
           WHERE NOT (
               has_table_privilege(to_regclass(name), 'SELECT')
               AND has_table_privilege(to_regclass(name), 'INSERT')
               AND has_table_privilege(to_regclass(name), 'UPDATE')
               AND has_table_privilege(to_regclass(name), 'DELETE')
           )
       ) AS refused
