UPDATE {schema}.namespace SET timeline = {schema}.timeline()
WHERE name = %(namespace)s AND {schema}.timeline() = %(timeline)s;
