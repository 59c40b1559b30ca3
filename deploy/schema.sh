#!/bin/sh
# Create Temporal's two databases, or bring their tables up to this server's version.
#
# The connection comes from SQL_PLUGIN, SQL_HOST, SQL_PORT, SQL_USER and SQL_PASSWORD.
set -eu

migrations=/etc/temporal/schema/postgresql/v12

for pair in temporal:temporal temporal_visibility:visibility; do
  database=${pair%%:*}
  temporal-sql-tool --database "$database" create-database
  # Version 0.0 only where there is none yet: on an older schema this changes nothing.
  temporal-sql-tool --database "$database" setup-schema -v 0.0
  temporal-sql-tool --database "$database" update-schema -d "$migrations/${pair##*:}/versioned"
done
