-- Find interactions, each by its id or its correlation, within a tenant, before anything is locked. If both are given,
-- both must fit.
-- Index: the primary key, interactions_correlation. See docs/internals/sql-plans.md.
-- Locks: none.
-- Returns: one row per interaction that exists: its position in the arrays, its ids, the instance and step that asked,
--   and the reply type; if a projector makes the reply, also the request and the current time.
select (g.place - 1)::integer as position, q.id::text as id, q.unit_id, q.instance_id, u.machine, u.version, u.step,
       t.reference::text as reference, case when t.reference ->> 0 = 'projected' then q.request::text end as request,
       case when t.reference ->> 0 = 'projected' then {schema}.now() end as asked_at
from unnest($1::uuid[], $2::uuid[], $3::text[]) with ordinality as g(id, correlation, tenant, place)
cross join lateral (
  select i.*
  from {schema}.interactions i
  where i.id = any (array[g.id]) and i.tenant || '' = g.tenant
    and (g.correlation is null or i.correlation = g.correlation)
  union all
  select i.* from {schema}.interactions i where g.id is null and i.tenant = g.tenant and i.correlation = g.correlation
) q
join {schema}.await_units u on u.id = any (array[q.unit_id])
join {schema}.reply_types t on t.id = any (array[u.reply_type])
order by g.place
