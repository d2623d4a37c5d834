-- Read the server's clock.
SELECT now()
