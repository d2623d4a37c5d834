-- Create the outbox table; every CHECK refuses a row that Kafka could not take. Needs CREATE on the schema.
CREATE TABLE {table} (
    id uuid NOT NULL,
    aggregate_type text NOT NULL,
    aggregate_id text NOT NULL,
    event_type text NOT NULL,
    event_version integer NOT NULL,
    payload {payload_type},
    occurred_at timestamptz NOT NULL,
    position bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    traceparent text,
    correlation_id text,
    causation_id text,
    headers jsonb,
    PRIMARY KEY ({primary_key}),
    CONSTRAINT aggregate_type_fits_a_topic CHECK (
        aggregate_type ~ {aggregate_type_pattern}
        AND length(aggregate_type) <= {max_aggregate_type}
        AND aggregate_type <> '.'
        AND aggregate_type <> '..'
    ),
    CONSTRAINT aggregate_id_fits_a_key CHECK (
        aggregate_id <> '' AND octet_length(aggregate_id) <= {max_aggregate_id}
    ),
    CONSTRAINT event_type_fits_a_header CHECK (
        event_type <> '' AND octet_length(event_type) <= {max_event_type}
    ),
    CONSTRAINT traceparent_fits_a_header CHECK (octet_length(traceparent) <= {max_trace_text}),
    CONSTRAINT correlation_id_fits_a_header CHECK (octet_length(correlation_id) <= {max_trace_text}),
    CONSTRAINT causation_id_fits_a_header CHECK (octet_length(causation_id) <= {max_trace_text}),
    CONSTRAINT headers_fit_a_header CHECK (octet_length(headers::text) <= {max_headers_bytes}),
    CONSTRAINT payload_fits_a_record CHECK (octet_length({payload_on_the_wire}) <= {max_payload_bytes})
)
{partition_by}
