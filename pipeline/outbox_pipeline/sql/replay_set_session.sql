-- Let values print as they travel.
SELECT set_config('TimeZone', 'UTC', false), set_config('DateStyle', 'ISO', false)
