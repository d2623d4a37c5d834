-- Store another password, as a verifier from which it cannot be read back.
ALTER ROLE {role} PASSWORD {verifier}
