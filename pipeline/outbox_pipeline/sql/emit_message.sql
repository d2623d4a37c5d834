-- Write a logical message into the write-ahead log and return its position. Needs EXECUTE on the function (PUBLIC has it until apply takes it).
SELECT pg_logical_emit_message(
    CAST(%(transactional)s AS boolean), CAST(%(prefix)s AS text), CAST(%(content)s AS text)
)::text
