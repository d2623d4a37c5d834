"""The far side: handle each event once."""
