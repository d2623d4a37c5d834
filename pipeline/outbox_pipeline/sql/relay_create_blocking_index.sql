-- Create the index of the aggregates that wait for a dead letter of theirs. Locks the dead letters against writing.
CREATE INDEX {blocking_index} ON {dead_letter} (aggregate_type, aggregate_id) WHERE blocks
