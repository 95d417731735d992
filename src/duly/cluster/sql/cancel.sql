-- The node that runs it sees it with its next heartbeat. The token is that of this run: it says nothing of the next.
UPDATE {schema}.task SET cancelled = token
WHERE namespace = %(namespace)s AND name = %(name)s AND run_by IS NOT NULL AND NOT removed
RETURNING id, pg_notify('duly', %(namespace)s);
