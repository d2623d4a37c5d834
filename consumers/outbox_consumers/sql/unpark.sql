-- Delete a parked event: it is handled, or has become a dead letter.
DELETE FROM {parked} WHERE position = %(position)s
