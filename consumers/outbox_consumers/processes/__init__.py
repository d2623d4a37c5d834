"""The processes of an application: start and supervise them, their health, metrics and log format."""
