"""The processes of an application: how many, their health and counters, and their log."""
