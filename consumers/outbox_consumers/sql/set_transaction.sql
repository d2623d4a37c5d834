-- Set for one transaction what is otherwise set for the session: time-outs, the date format of psycopg, and a durable commit.
SELECT set_config('lock_timeout', %(lock_timeout)s, true),
       set_config('idle_in_transaction_session_timeout', %(idle_timeout)s, true),
       set_config('DateStyle', 'ISO', true),
       set_config(
           'synchronous_commit',
           CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on'
                ELSE current_setting('synchronous_commit') END,
           true
       )
