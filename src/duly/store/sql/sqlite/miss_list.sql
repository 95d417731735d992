SELECT timer, at_us, reason FROM miss
ORDER BY id DESC
LIMIT :limit;
