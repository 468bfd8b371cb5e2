-- Read the schema's version and the oldest code that may run on it. Fails with undefined_table (42P01) on a database
-- that was never migrated.
-- Keeps: it works on the schema of every version; both columns keep their names for ever.
-- Locks: none.
select m.version, m.oldest_code
from {schema}.meta m
