-- An id that was given up stays, as fenced: a lost attempt to come back under it fails when it is executed late.
INSERT INTO {schema}.node AS node (id, namespace, name, lease_us, server, version, joined_us, seen_us, fenced_us,
                                   fenced_by)
SELECT id, %(namespace)s, %(name)s, %(lease_us)s, {schema}.server(), %(version)s, {schema}.now_us(),
       {schema}.now_us(), {schema}.now_us(), %(name)s
FROM unnest(%(before)s::bigint[]) AS former(id) ORDER BY id
ON CONFLICT (id) DO UPDATE
SET fenced_us = coalesce(node.fenced_us, excluded.fenced_us), fenced_by = coalesce(node.fenced_by, excluded.fenced_by);
