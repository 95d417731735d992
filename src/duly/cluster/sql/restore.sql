-- A server that has forgotten commits gets back what it had acknowledged, where no newer claim has come meanwhile.
UPDATE {schema}.task AS task
SET token = given.token, run_by = (%(before)s::bigint[])[1], started_us = given.started_us, cut_us = NULL,
    limited_by = NULL, record = NULL,
    state = coalesce(given.before, task.state)
FROM unnest(%(run_names)s::text[], %(run_tokens)s::bigint[], %(run_starts)s::bigint[],
            %(run_states)s::text[], %(run_hashes)s::bigint[])
    AS given(name, token, started_us, before, hash)
WHERE task.namespace = %(namespace)s AND task.name = given.name AND task.token < given.token
    AND task.hash = given.hash AND {has_forgotten};
UPDATE {schema}.task AS task
SET token = given.token, run_by = NULL, started_us = NULL, cut_us = NULL, interruptions = 0, state = given.state,
    wake_us = given.wake_us
FROM unnest(%(ended_names)s::text[], %(ended_tokens)s::bigint[], %(ended_starts)s::bigint[],
            %(ended_states)s::text[], %(ended_wakes)s::bigint[], %(ended_hashes)s::bigint[])
    AS given(name, token, started_us, state, wake_us, hash)
WHERE task.namespace = %(namespace)s AND task.name = given.name AND task.hash = given.hash
    AND (task.token < given.token OR task.token = given.token AND task.started_us = given.started_us)
    AND {has_forgotten};
UPDATE {schema}.namespace SET timeline = ''
WHERE name = %(namespace)s AND {schema}.timeline() = %(timeline)s AND {has_forgotten};
