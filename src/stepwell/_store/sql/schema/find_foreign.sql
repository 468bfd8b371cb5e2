-- Find out whether the schema, or its table meta, belongs to a role that the current one neither is nor is a member of,
-- or is no ordinary table. The migrating role runs what they contain: triggers, functions.
-- Keeps: a superuser counts as a member of every role, so the grants themselves are read: a role that administers
--   another may grant it to the migrating role without asking. A grant counts if a superuser made it, or, where the
--   migrating role is no superuser, a role that may create roles. What a superuser owns is no danger to another
--   superuser.
-- Index: those of the catalogs.
-- Locks: none.
-- Returns: the object and its owner; nothing if all is right.
with recursive mine(oid) as (
  select r.oid from pg_catalog.pg_roles r where r.rolname = current_user
  union
  select m.roleid
  from mine
  join pg_catalog.pg_auth_members m on m.member = mine.oid
  join pg_catalog.pg_roles g on g.oid = m.grantor
  join pg_catalog.pg_roles r on r.rolname = current_user
  where g.rolsuper or g.rolcreaterole and not r.rolsuper
), found as (
  select 'the schema {schema}' as what, n.nspowner as owner, false as is_odd
  from pg_catalog.pg_namespace n
  where n.nspname = '{schema}'
  union all
  select '{schema}.meta', c.relowner, c.relkind <> 'r' or c.relrowsecurity
  from pg_catalog.pg_class c
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  where n.nspname = '{schema}' and c.relname = 'meta'
)
select f.what, o.rolname as owner
from found f
join pg_catalog.pg_roles o on o.oid = f.owner
where f.is_odd
   or not (exists (select from mine where mine.oid = f.owner)
           or o.rolsuper and (select r.rolsuper from pg_catalog.pg_roles r where r.rolname = current_user))
order by f.what desc
