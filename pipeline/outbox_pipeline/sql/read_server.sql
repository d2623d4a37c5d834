-- Read the settings that logical decoding rests on, and how many slots and senders are taken.
SELECT
    pg_is_in_recovery() AS in_recovery,
    (
        SELECT jsonb_object_agg(name, jsonb_build_object('value', setting, 'unit', unit))
        FROM pg_settings
        WHERE name IN (
            'wal_level', 'output_plugin_libraries', 'max_replication_slots', 'max_wal_senders',
            'max_slot_wal_keep_size', 'wal_sender_timeout', 'idle_in_transaction_session_timeout',
            'idle_replication_slot_timeout', 'synchronized_standby_slots', 'wal_keep_size'
        )
    ) AS settings,
    (SELECT count(*) FROM pg_replication_slots) AS slots,
    (SELECT count(*) FROM pg_stat_replication) AS senders,
    (
        SELECT coalesce(jsonb_agg(slot_name ORDER BY slot_name), '[]')
        FROM pg_replication_slots
        WHERE slot_type = 'physical' AND active
    ) AS active_physical_slots
