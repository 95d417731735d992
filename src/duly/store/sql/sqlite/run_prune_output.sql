-- The ids of runs whose output is to be forgotten, since that of newer runs of the same service fills the
-- limit. octet_length reads no more than the header of a row.
SELECT id
FROM (
    SELECT id,
           octet_length(output) AS size,
           sum(octet_length(output)) OVER (PARTITION BY service ORDER BY id DESC) AS total
    FROM run
)
WHERE size > 0
  AND total - size >= :bytes;
