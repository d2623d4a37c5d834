-- Keep writers out of a partition that is about to be dropped; with a short lock timeout, since they would queue.
LOCK TABLE {partition} IN ACCESS EXCLUSIVE MODE
