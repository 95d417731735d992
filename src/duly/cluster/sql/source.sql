unnest(%(names)s::text[], %(hashes)s::bigint[], %(definitions)s::text[], %(states)s::text[], %(wakes)s::bigint[],
    %(targets)s::text[], %(pauses)s::boolean[]) AS given(name, hash, definition, state, wake_us, target, paused)
