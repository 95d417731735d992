INSERT OR REPLACE INTO run SELECT {values} FROM jsonb_each(?);
