-- Forget dead jobs for good.
DELETE FROM {job} WHERE consumer = %(consumer)s AND state = 'dead' AND position = ANY(%(positions)b::bigint[])
