-- Create the log of replays: who, when, why, what. Needs CREATE on the schema the first time.
CREATE TABLE IF NOT EXISTS {replay_log} (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    started_at timestamptz NOT NULL DEFAULT now(),
    who text NOT NULL DEFAULT session_user,
    reason text NOT NULL,
    selection text NOT NULL,
    events bigint
)
