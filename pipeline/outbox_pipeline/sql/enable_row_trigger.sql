-- Enable a disabled trigger. Takes SHARE ROW EXCLUSIVE for a moment; needs ownership of the table.
ALTER TABLE {table} ENABLE TRIGGER {trigger}
