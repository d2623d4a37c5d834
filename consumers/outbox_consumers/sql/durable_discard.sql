-- Delete dead jobs. Their inbox rows stay, so a job with the same id is not added again.
DELETE FROM {job} WHERE state = 'dead' AND position = ANY(%(positions)b::bigint[])
