"""The inbox: claims of event ids, the tables and their creation, and how long ids are remembered."""
