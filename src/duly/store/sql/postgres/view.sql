-- One statement, so that all of it is of one instant.
WITH clock AS MATERIALIZED (SELECT {schema}.now_us() AS now_us)
SELECT now_us,
       (SELECT coalesce(max(number), 0) FROM {schema}.edition),
       (SELECT coalesce(json_agg(json_build_array(member, name, edition, lease_us > now_us, joined_us, beaten_us,
                                                  lag_ms, is_leaving)
                                 ORDER BY joined_us, member), '[]')::text
        FROM {schema}.member),
       (SELECT json_agg(json_build_array(shard, term, holder, taken_us, lost_by, lost_us) ORDER BY shard)::text
        FROM {schema}.shard),
       (SELECT coalesce(json_agg(json_build_array(id, running_since_us, ended_us, is_failed, run_by)
                                 ORDER BY id), '[]')::text
        FROM {schema}.task
        JOIN {schema}.shard USING (shard)
        WHERE holder = %(member)s AND ended_us IS NOT NULL),
       coalesce((SELECT fingerprint FROM {schema}.edition ORDER BY number DESC LIMIT 1), ''),
       extract(epoch FROM pg_postmaster_start_time())::text,
       (SELECT coalesce(json_agg(json_build_array(id, shard) ORDER BY id), '[]')::text
        FROM {schema}.request
        JOIN {schema}.shard USING (shard)
        WHERE holder = %(member)s
          AND answer IS NULL
          AND until_us > now_us
          AND coalesce(taken_by, %(member)s) = %(member)s),
       (SELECT json_build_array(started_up_us, opened_us)::text FROM {schema}.meta WHERE started_up_us IS NOT NULL),
       {schema}.is_open()
FROM clock;
