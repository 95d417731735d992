-- What is put takes the place of what was removed.
DELETE FROM {schema}.removed_task
WHERE id IN (SELECT unnest(%(id)s::bigint[])) OR digest IN (SELECT unnest(%(digest)s::uuid[]));
