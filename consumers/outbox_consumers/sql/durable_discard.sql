-- Forget dead jobs for good. Their inbox rows stay, so they are not put in again.
DELETE FROM {job} WHERE state = 'dead' AND position = ANY(%(positions)b::bigint[])
