-- What we may not do and must.
SELECT upper(need.verb) || ' on ' || need.place
FROM (SELECT verb, format('table %%I.%%I', %(schema_name)s, name) AS place,
             has_table_privilege(format('%%I.%%I', %(schema_name)s, name), verb) AS is_granted
      FROM unnest(ARRAY['namespace', 'node', 'task', 'run']) AS name,
           unnest(ARRAY['select', 'insert', 'update', 'delete']) AS verb) AS need
WHERE NOT need.is_granted;
