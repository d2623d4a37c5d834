-- Keep COPY rows on distinct LSNs (Debezium dbz#1554): a row trigger that never fires switches multi-insert off.
CREATE TRIGGER keep_copy_rows_apart BEFORE INSERT ON {table}
    FOR EACH ROW WHEN (false) EXECUTE FUNCTION pg_catalog.suppress_redundant_updates_trigger()
