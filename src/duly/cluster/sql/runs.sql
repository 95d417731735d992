SELECT id, name, node, token, started_us, record, CASE WHEN %(with_output)s THEN output END FROM {schema}.run
WHERE namespace = %(namespace)s AND (%(name)s::text IS NULL OR name = %(name)s)
    AND (%(node)s::text IS NULL
         OR node = %(node)s AND split_part(record, '"', 2) = %(run_id)s AND output IS NOT NULL)
    AND (%(before)s::bigint IS NULL
         OR (started_us, id) < ((SELECT started_us FROM {schema}.run WHERE id = %(before)s), %(before)s))
    AND (%(before_us)s::bigint IS NULL OR started_us < %(before_us)s)
    AND (%(since_us)s::bigint IS NULL OR started_us >= %(since_us)s)
    AND (%(result)s::text IS NULL OR split_part(record, '"', 6) = %(result)s)
ORDER BY started_us DESC, id DESC LIMIT %(limit)s;
