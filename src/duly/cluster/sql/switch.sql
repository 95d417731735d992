UPDATE {schema}.task
SET enabled = %(enabled)s, request = coalesce(request, 'look'), wake_us = least(wake_us, {schema}.now_us())
WHERE namespace = %(namespace)s AND name = %(name)s AND NOT removed
RETURNING id, pg_notify('duly', %(namespace)s);
