UPDATE {schema}.meta
SET started_up_us = %(at_us)s, opened_us = %(opened_us)s
WHERE EXISTS (SELECT FROM {schema}.member WHERE member = %(member)s AND lease_us > {schema}.now_us())
RETURNING shards;
