-- Let the role read replication slots on Amazon RDS. Needs ADMIN on rds_replication, as rds_superuser has.
GRANT rds_replication TO {role}
