-- Delete a bounded number of old rows whose ids carry no time; run it again until it deletes none.
DELETE FROM {partition}
WHERE ctid = ANY(ARRAY(SELECT ctid FROM {partition} WHERE received_at < %(before)s LIMIT 10000))
