-- A row keeps what it was asked before and has not answered. A run under way answers when it has ended.
UPDATE {schema}.task
SET request = CASE WHEN request IS NULL THEN %(text)s
                   WHEN %(text)s = ANY(string_to_array(request, ';')) THEN request
                   ELSE request || ';' || %(text)s END,
    wake_us = 0
WHERE namespace = %(namespace)s AND name = ANY(%(names)s::text[]) AND NOT removed
RETURNING pg_notify('duly', %(namespace)s);
