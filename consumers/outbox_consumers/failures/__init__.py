"""What becomes of an event that fails: parked, dead letters, crashed processes, and their administration."""
