-- How often each timer missed a slot since then, by reason: those that missed last come first.
SELECT timer, reason, count(*), min(at_us), max(at_us)
FROM miss
WHERE at_us >= :since
GROUP BY timer, reason
ORDER BY max(at_us) DESC, timer
LIMIT :limit;
