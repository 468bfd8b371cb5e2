-- Tell whether the role stepwell_client is there and may use the SQL doors. Locks: none.
select coalesce(bool_or(has_function_privilege(r.oid, 'stepwell.start_many(jsonb, boolean)', 'execute')), false) as has
from pg_roles r
where r.rolname = 'stepwell_client'
