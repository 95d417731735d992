UPDATE {schema}.member SET edition = %(edition)s WHERE member = %(member)s RETURNING member;
