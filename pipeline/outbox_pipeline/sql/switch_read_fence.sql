-- Read the cutover position, up to which rows are still the relay's; NULL when no switch is running.
SELECT until_position FROM {settings}
