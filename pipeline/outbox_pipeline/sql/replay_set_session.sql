-- Let values print as Debezium writes them.
SELECT set_config('TimeZone', 'UTC', false), set_config('DateStyle', 'ISO', false)
