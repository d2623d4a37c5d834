-- Count the sessions of this database with an application name.
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = %(name)s
