UPDATE {schema}.namespace SET startup_us = %(at_us)s WHERE name = %(namespace)s;
