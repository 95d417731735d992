-- Who wants to publish, and where its list stands: is it a member, the newest edition, the newest with this
-- fingerprint, and whether somebody else who lives has a newer one than that. One publishes at a time.
SELECT FROM {schema}.meta FOR UPDATE;
WITH last AS MATERIALIZED (
    SELECT coalesce(max(number), 0) AS number,
           coalesce(max(number) FILTER (WHERE fingerprint = %(fingerprint)s), 0) AS own
    FROM {schema}.edition
)
SELECT EXISTS (SELECT FROM {schema}.member WHERE member = %(member)s),
       number,
       own,
       EXISTS (SELECT FROM {schema}.member
               WHERE member <> %(member)s AND edition > own AND lease_us > {schema}.now_us())
FROM last;
