-- Remove a worker that has nothing in hand.
DELETE FROM {worker} WHERE id = %(worker)s
