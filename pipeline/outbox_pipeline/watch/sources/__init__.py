"""Where a sample comes from: one module per server. All of the watch's I/O is here."""
