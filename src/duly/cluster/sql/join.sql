DELETE FROM {schema}.node WHERE namespace = %(namespace)s AND fenced_us < {schema}.now_us() - %(kept_us)s
    AND NOT EXISTS (SELECT FROM {schema}.task WHERE run_by = node.id);
-- A server that was ever promoted may have forgotten the whole namespace: claims begin when a lease is over.
INSERT INTO {schema}.namespace (name, timeline)
SELECT %(namespace)s, CASE {schema}.timeline() WHEN '00000001' THEN '00000001' ELSE '' END ON CONFLICT DO NOTHING;
INSERT INTO {schema}.node (id, namespace, name, lease_us, server, version, joined_us, seen_us, seq)
SELECT %(node)s, %(namespace)s, %(name)s, %(lease_us)s, {schema}.server(), %(version)s, now_us, now_us, 1
FROM (SELECT {schema}.now_us()) AS clock(now_us);
