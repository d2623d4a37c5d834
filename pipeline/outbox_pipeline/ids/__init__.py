"""Event ids by the million: read from tables and topics as packed bytes, kept on disk, compared in parts."""
