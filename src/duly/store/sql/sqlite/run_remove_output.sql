UPDATE run
SET output = '', output_times = NULL, output_lost = output_lost + octet_length(output)
WHERE id IN (SELECT value FROM json_each(?));
