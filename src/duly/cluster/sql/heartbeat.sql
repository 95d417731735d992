-- The first one to another server only checks it. It was built before the last answer of the old server may have
-- come; raising seq here would hide what that answer acknowledged.
UPDATE {schema}.node
SET beat = beat + 1, seq = seq + (server = {schema}.server())::integer, seen_us = {schema}.now_us(), lag_us = %(lag_us)s, server = {schema}.server()
WHERE id = %(node)s AND fenced_us IS NULL AND seq >= %(acked)s;
