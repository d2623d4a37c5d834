-- Add up the files in pg_wal. Needs EXECUTE on pg_ls_waldir(), which pg_monitor has; touches no table.
SELECT coalesce(sum(size), 0) AS bytes FROM pg_ls_waldir()
