DELETE FROM miss
WHERE at_us < :oldest
   OR id IN (SELECT id
             FROM (SELECT id, row_number() OVER (PARTITION BY timer ORDER BY id DESC) AS age FROM miss)
             WHERE age > :runs);
