-- What we may not do and must.
SELECT upper(need.verb) || ' on ' || need.place
FROM (SELECT verb, format('table %%I.%%I', %(schema_name)s, name) AS place,
             has_table_privilege(format('%%I.%%I', %(schema_name)s, name), verb) AS is_granted
      FROM unnest(ARRAY['meta', 'server', 'edition', 'member', 'shard', 'task', 'removed_task', 'timer', 'request']) AS name,
           unnest(ARRAY['select', 'insert', 'update', 'delete']) AS verb
      UNION ALL
      SELECT 'execute', format('function %%I.%%s', %(schema_name)s, name),
             has_function_privilege(format('%%I.%%s', %(schema_name)s, name), 'execute')
      FROM unnest(ARRAY['now_us()', 'is_open()']) AS name) AS need
WHERE NOT need.is_granted;
