SELECT timer, at_us, reason FROM miss
WHERE timer = :timer
ORDER BY id DESC
LIMIT :limit;
