-- Wake the workers when this transaction commits; several calls in one transaction are one message.
SELECT pg_notify(%(channel)s, '')
