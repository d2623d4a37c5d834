"""Sources of samples, one module per server. All I/O of sampling is here."""
