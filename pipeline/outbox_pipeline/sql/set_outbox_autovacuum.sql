-- Vacuum early: rows come in at one end and leave in batches at the other. SHARE UPDATE EXCLUSIVE for a moment.
ALTER TABLE {table} SET (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
)
