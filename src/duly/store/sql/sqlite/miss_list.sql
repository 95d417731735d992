SELECT timer, at_us, reason FROM miss
WHERE (:timer IS NULL OR timer = :timer)
ORDER BY id DESC
LIMIT :limit;
