-- Read the stored password verifier of a role. Needs a superuser.
SELECT rolpassword AS verifier FROM pg_authid WHERE rolname = %(name)s
