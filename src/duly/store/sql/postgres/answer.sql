UPDATE {schema}.request
SET answer = %(answer)s
WHERE id = %(id)s AND taken_by = %(member)s AND answer IS NULL;
