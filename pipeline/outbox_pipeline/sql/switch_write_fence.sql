-- Store the cutover position, up to which rows are still the relay's.
UPDATE {settings} SET until_position = %(until)s
