-- Take the watch's sample: one JSON document from one moment. Catalogs and statistics only (AccessShare);
-- any role may run it, pg_monitor sees more. Ages are in seconds, positions in bytes, times as epoch seconds.
WITH RECURSIVE outbox AS (
    SELECT c.oid, c.relkind, c.reltuples
    FROM pg_class AS c
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = %(schema)s AND c.relname = %(table)s AND c.relkind IN ('r', 'p')
),
tree AS (
    SELECT oid, relkind FROM outbox
    UNION
    SELECT c.oid, c.relkind
    FROM tree AS t
    JOIN pg_inherits AS i ON i.inhparent = t.oid
    JOIN pg_class AS c ON c.oid = i.inhrelid
),
parts AS (SELECT oid FROM tree WHERE relkind = 'r'),
position AS (
    SELECT CASE
        WHEN NOT pg_is_in_recovery() THEN pg_current_wal_lsn()
        ELSE greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())
    END AS lsn
),
checkpoint AS (SELECT * FROM pg_control_checkpoint())
SELECT jsonb_build_object(
    'server', jsonb_build_object(
        'version', CAST(current_setting('server_version_num') AS integer),
        'system_identifier', CAST((SELECT system_identifier FROM pg_control_system()) AS text),
        'timeline', (SELECT timeline_id FROM checkpoint),
        'started_at', extract(epoch FROM pg_postmaster_start_time()),
        'clock', extract(epoch FROM clock_timestamp()),
        'in_recovery', pg_is_in_recovery(),
        'wal_position', pg_wal_lsn_diff((SELECT lsn FROM position), '0/0'),
        'redo_position', pg_wal_lsn_diff((SELECT redo_lsn FROM checkpoint), '0/0'),
        'checkpoint_at', extract(epoch FROM (SELECT checkpoint_time FROM checkpoint)),
        'archive_failing', (
            SELECT coalesce(last_failed_time > coalesce(last_archived_time, '-infinity'), FALSE)
            FROM pg_stat_archiver
        ),
        'monitor', pg_has_role('pg_monitor', 'USAGE'),
        'may_list_wal', has_function_privilege('pg_ls_waldir()', 'EXECUTE')
    ),
    'settings', (
        SELECT jsonb_object_agg(name, jsonb_build_array(setting, unit))
        FROM pg_settings WHERE name = ANY(%(settings)s)
    ),
    'slots', (
        SELECT coalesce(jsonb_agg(jsonb_build_object(
            'row', to_jsonb(s),
            'restart', pg_wal_lsn_diff(s.restart_lsn, '0/0'),
            'confirmed', pg_wal_lsn_diff(s.confirmed_flush_lsn, '0/0'),
            'xmin_age', age(s.xmin),
            'catalog_xmin_age', age(s.catalog_xmin),
            'spill_bytes', d.spill_bytes,
            'total_txns', d.total_txns
        )), '[]')
        FROM pg_replication_slots AS s
        LEFT JOIN pg_stat_replication_slots AS d ON d.slot_name = s.slot_name
    ),
    'senders', (
        SELECT coalesce(jsonb_agg(jsonb_build_object(
            'pid', a.pid,
            'backend_type', a.backend_type,
            'user', a.usename,
            'application', a.application_name,
            'client', host(a.client_addr),
            'state', r.state,
            'sent', pg_wal_lsn_diff(r.sent_lsn, '0/0'),
            'flush_lag', extract(epoch FROM r.flush_lag),
            'reply_at', extract(epoch FROM r.reply_time),
            'wait_event', a.wait_event
        )), '[]')
        FROM pg_stat_activity AS a
        LEFT JOIN pg_stat_replication AS r ON r.pid = a.pid
        WHERE r.pid IS NOT NULL OR a.pid IN (SELECT active_pid FROM pg_replication_slots)
    ),
    'holders', (
        SELECT coalesce(jsonb_agg(to_jsonb(h) ORDER BY greatest(h.xid_age, h.xmin_age) DESC), '[]')
        FROM (
            SELECT * FROM (
                SELECT
                    'backend' AS kind, a.pid, NULL AS gid, CAST(a.datname AS text) AS database,
                    CAST(a.usename AS text) AS "user", a.application_name AS application, a.state,
                    CAST(CAST(a.backend_xid AS text) AS bigint) AS xid,
                    age(a.backend_xid) AS xid_age, age(a.backend_xmin) AS xmin_age,
                    extract(epoch FROM clock_timestamp() - a.xact_start) AS seconds
                FROM pg_stat_activity AS a
                WHERE
                    (a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL)
                    AND a.pid <> pg_backend_pid()
                    AND a.backend_type IS DISTINCT FROM 'walsender'
                UNION ALL
                SELECT
                    'prepared', NULL, p.gid, CAST(p.database AS text), CAST(p.owner AS text), NULL, NULL,
                    CAST(CAST(p.transaction AS text) AS bigint), age(p.transaction), NULL,
                    extract(epoch FROM clock_timestamp() - p.prepared)
                FROM pg_prepared_xacts AS p
            ) AS every_holder
            ORDER BY greatest(xid_age, xmin_age) DESC
            LIMIT 20
        ) AS h
    ),
    'outbox', (
        SELECT jsonb_build_object(
            'inserted', (SELECT sum(t.n_tup_ins) FROM pg_stat_all_tables AS t WHERE t.relid IN (SELECT oid FROM parts)),
            'deleted', (SELECT sum(t.n_tup_del) FROM pg_stat_all_tables AS t WHERE t.relid IN (SELECT oid FROM parts)),
            'live', (SELECT sum(t.n_live_tup) FROM pg_stat_all_tables AS t WHERE t.relid IN (SELECT oid FROM parts)),
            'dead', (SELECT sum(t.n_dead_tup) FROM pg_stat_all_tables AS t WHERE t.relid IN (SELECT oid FROM parts)),
            'autovacuum_seconds', (
                SELECT extract(epoch FROM clock_timestamp() - max(t.last_autovacuum))
                FROM pg_stat_all_tables AS t WHERE t.relid IN (SELECT oid FROM parts)
            ),
            'pages', (SELECT sum(c.relpages) FROM pg_class AS c WHERE c.oid IN (SELECT oid FROM parts)),
            'rows', (SELECT sum(greatest(c.reltuples, 0)) FROM pg_class AS c WHERE c.oid IN (SELECT oid FROM parts)),
            'readable', has_table_privilege(o.oid, 'SELECT')
                AND has_schema_privilege(CAST(%(schema)s AS text), 'USAGE'),
            'stats_reset_at', (
                SELECT extract(epoch FROM stats_reset) FROM pg_stat_database WHERE datname = current_database()
            )
        )
        FROM outbox AS o
    ),
    'tickers', (
        SELECT count(*) FROM pg_stat_activity
        WHERE application_name = %(ticker)s AND %(ticker)s <> '' AND datname = current_database()
    )
) AS sample
