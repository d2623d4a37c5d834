"""Access to PostgreSQL and Kafka: sessions, slots, topics, log positions, rights, trust, and plans."""
