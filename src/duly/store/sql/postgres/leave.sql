SELECT FROM {schema}.shard WHERE holder = %(member)s ORDER BY shard FOR UPDATE;
UPDATE {schema}.shard SET holder = NULL WHERE holder = %(member)s;
DELETE FROM {schema}.member WHERE member = %(member)s;
