SELECT taken_by, answer FROM {schema}.request WHERE id = %(id)s;
