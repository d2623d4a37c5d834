-- Say that this process ends in an orderly way.
DELETE FROM {member} WHERE member = %(member)s
