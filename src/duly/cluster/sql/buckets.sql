-- A record begins with the run id, the cause, two times and the result: its texts are recognised by their quotes.
SELECT name, (started_us - %(from_us)s) / %(width_us)s AS part, split_part(record, '"', 6) AS result, count(*),
       (array_agg(split_part(record, '"', 2) ORDER BY started_us DESC, id DESC))[1],
       min(started_us), max(ended_us),
       (array_agg(node ORDER BY started_us DESC, id DESC))[1]
FROM {schema}.run
WHERE namespace = %(namespace)s AND name = ANY(%(names)s::text[])
    AND started_us >= %(from_us)s AND started_us < %(to_us)s
GROUP BY name, part, result
ORDER BY name, part, result;
