-- The lock on my row keeps a fence out until the end of this transaction.
UPDATE {schema}.node SET seq = seq + 1
WHERE id = %(node)s AND fenced_us IS NULL AND server = {schema}.server() AND seq >= %(acked)s
RETURNING seq;
