SELECT {columns} FROM task ORDER BY id;
