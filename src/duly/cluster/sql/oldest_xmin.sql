-- A session of another role has its backend_xmin only for members of pg_read_all_stats.
SELECT coalesce(max(age(held.xmin)), 0)
FROM (SELECT backend_xmin AS xmin FROM pg_catalog.pg_stat_activity
      UNION ALL SELECT xmin FROM pg_catalog.pg_replication_slots
      UNION ALL SELECT transaction FROM pg_catalog.pg_prepared_xacts) AS held;
