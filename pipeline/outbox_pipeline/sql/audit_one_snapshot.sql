-- Let all that is read in this transaction come from one snapshot.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY
