-- List the queues in which events of this consumer are parked.
SELECT DISTINCT queue FROM {parked} WHERE consumer = %(consumer)s
