UPDATE {schema}.task SET wake_us = clock.now_us
FROM (SELECT coalesce(%(now_us)s, {schema}.now_us()) AS now_us OFFSET 0) AS clock
WHERE namespace = %(namespace)s AND run_by IS NULL AND wake_us > clock.now_us
    AND (token > clock.now_us + %(look_again_us)s OR wake_us = %(asleep_us)s)
    AND EXISTS (SELECT FROM {schema}.node WHERE id = %(node)s AND {owner});
