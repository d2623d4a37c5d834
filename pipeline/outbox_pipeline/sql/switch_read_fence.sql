-- Read the position up to which rows are still the relay's; NULL when the road is not being switched.
SELECT until_position FROM {settings}
