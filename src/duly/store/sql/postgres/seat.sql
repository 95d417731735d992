SELECT member FROM {schema}.member WHERE member = %(member)s;
