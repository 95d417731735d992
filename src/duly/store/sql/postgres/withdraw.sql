-- Whoever is taking it at this moment is waited for, and then it is not to be had.
DELETE FROM {schema}.request WHERE id = %(id)s AND taken_by IS NULL RETURNING taken_by, answer;
