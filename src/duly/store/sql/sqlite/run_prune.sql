-- Too old, or more than so many of one service; the newest of each that ended is always kept, and so is
-- whatever has not ended.
DELETE FROM run
WHERE ended_us IS NOT NULL
  AND id NOT IN (SELECT max(id) FROM run WHERE ended_us IS NOT NULL GROUP BY service)
  AND (ended_us < :oldest
       OR id IN (SELECT id
                 FROM (SELECT id, row_number() OVER (PARTITION BY service ORDER BY id DESC) AS age FROM run)
                 WHERE age > :runs));
