-- Creates what must exist before `outboxctl apply`: two databases and the roles of their applications.
-- The image's entrypoint runs it once, when the data volume is empty.
-- \getenv keeps the password out of every command line.
\getenv app_password OUTBOX_APP_PASSWORD
SET log_min_error_statement = 'panic';

CREATE ROLE shop_app LOGIN PASSWORD :'app_password';
CREATE ROLE billing_app LOGIN PASSWORD :'app_password';

REVOKE ALL ON DATABASE shop FROM PUBLIC;
-- CREATE: the shop keeps its tables in a schema of its own.
GRANT CONNECT, CREATE ON DATABASE shop TO shop_app;

CREATE DATABASE billing OWNER billing_app;
REVOKE ALL ON DATABASE billing FROM PUBLIC;
