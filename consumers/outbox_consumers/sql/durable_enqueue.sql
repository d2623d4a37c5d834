-- Queue jobs in the given order. A job without a key is ready at once; one with a key is sorted into its queue first.
INSERT INTO {job} (
    consumer, state, queue, priority, due_at,
    event_id, event_type, topic, partition, "offset", key, payload, headers
)
SELECT %(consumer)s,
       CASE WHEN j.queue IS NOT NULL THEN 'new' WHEN j.due_at > now() THEN 'later' ELSE 'ready' END,
       j.queue, j.priority, COALESCE(j.due_at, now()),
       j.event_id, j.event_type, j.topic, j.partition, j."offset", j.key, j.payload, j.headers::jsonb
FROM unnest(
         %(queues)b::bytea[], %(priorities)b::smallint[], %(due)b::timestamptz[],
         %(ids)s::uuid[], %(types)b::text[], %(topics)b::text[], %(partitions)b::integer[],
         %(offsets)b::bigint[], %(keys)b::bytea[], %(payloads)b::bytea[], %(headers)b::text[]
     ) WITH ORDINALITY AS j(
         queue, priority, due_at,
         event_id, event_type, topic, partition,
         "offset", key, payload, headers, place
     )
ORDER BY j.place
