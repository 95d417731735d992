INSERT OR REPLACE INTO task ({columns})
SELECT {column_values} FROM jsonb_each(?);
