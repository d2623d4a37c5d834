-- Print dates as ISO, the only style that psycopg reads.
SELECT set_config('DateStyle', 'ISO', false)
