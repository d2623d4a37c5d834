-- Delete this process's row: it ends without a crash.
DELETE FROM {member} WHERE member = %(member)s
