-- Keep writers out of a partition that is about to go; gives up soon, since they would queue.
LOCK TABLE {partition} IN ACCESS EXCLUSIVE MODE
