-- Create the table of rows that can never be published, every column nullable: a broken row must fit. Needs CREATE on the schema.
CREATE TABLE {dead_letter} (
    id uuid NOT NULL PRIMARY KEY,
    aggregate_type text,
    aggregate_id text,
    event_type text,
    event_version integer,
    payload {payload_type},
    occurred_at timestamptz,
    position bigint NOT NULL,
    traceparent text,
    correlation_id text,
    causation_id text,
    headers jsonb,
    cause text NOT NULL,
    attempts integer NOT NULL,
    failed_at timestamptz NOT NULL DEFAULT now(),
    blocks boolean NOT NULL
)
