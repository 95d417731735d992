DELETE FROM miss WHERE id IN (SELECT value FROM json_each(?));
