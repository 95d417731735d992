-- Values as `save.sql` has them.
INSERT OR REPLACE INTO task ({columns})
SELECT {values} FROM jsonb_each(?1);
