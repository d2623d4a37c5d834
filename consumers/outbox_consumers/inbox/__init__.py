"""The inbox tables: claims of event ids, their schema, and how long ids are remembered."""
