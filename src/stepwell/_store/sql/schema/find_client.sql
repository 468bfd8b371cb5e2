-- Read which role may use the SQL functions, and whether it exists and has the right.
-- Locks: none.
select m.client_role as name,
       coalesce((select has_function_privilege(r.oid, '{schema}.start_many(jsonb, boolean)', 'execute')
                 from pg_roles r
                 where r.rolname = m.client_role), false) as has
from {schema}.meta m
