-- Of some timers how many slots of a span were missed in each part of it, and the reason of one of them.
SELECT timer, (at_us - :from) / :width AS part, count(*), min(at_us), min(reason)
FROM miss
WHERE timer IN (SELECT value FROM json_each(:timers)) AND at_us >= :from AND at_us < :to
GROUP BY timer, part;
