"""The loop of a consumer: fetch from Kafka, apply in one transaction, store offsets, hold what fails."""
