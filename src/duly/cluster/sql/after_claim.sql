-- The time is a query of its own: a volatile function beside `wake_us` would be called for every row that is due.
SELECT coalesce(%(now_us)s, {schema}.now_us()), {is_open},
       (SELECT wake_us FROM {schema}.task
        WHERE namespace = %(namespace)s AND run_by IS NULL AND NOT paused AND NOT removed AND {is_mine}
            AND wake_us > (SELECT coalesce(%(now_us)s, {schema}.now_us()))
        ORDER BY wake_us LIMIT 1);
