-- Create the journal of what was deleted from the inbox, by whom and why. Needs CREATE on the schema.
CREATE TABLE IF NOT EXISTS {journal} (
    at timestamptz NOT NULL DEFAULT now(),
    by text NOT NULL DEFAULT session_user,
    action text NOT NULL CHECK (action IN ('dropped', 'forgotten')),
    before_id uuid,
    detail text NOT NULL
)
