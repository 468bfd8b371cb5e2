-- Find questions, each by its id or by its correlation, within a tenant, before anything is locked. If both are given,
-- both must fit.
-- Index: the primary key (|| '': no other), interactions_correlation. Locks: none.
-- Returns: one row per question that is there: its place in the arrays, its ids, who asked, and the reply's type; if a
--   projector makes the reply, also the request, and what time it is.
select (g.place - 1)::integer as position, q.id::text as id, q.unit_id, q.instance_id, u.machine, u.version, u.step,
       t.reference::text as reference, case when t.reference ->> 0 = 'projected' then q.request::text end as request,
       case when t.reference ->> 0 = 'projected' then stepwell.now() end as asked_at
from unnest($1::uuid[], $2::uuid[], $3::text[]) with ordinality as g(id, correlation, tenant, place)
cross join lateral (
  select i.*
  from stepwell.interactions i
  where i.id = any (array[g.id]) and i.tenant || '' = g.tenant
    and (g.correlation is null or i.correlation = g.correlation)
  union all
  select i.* from stepwell.interactions i where g.id is null and i.tenant = g.tenant and i.correlation = g.correlation
) q
join stepwell.await_units u on u.id = any (array[q.unit_id])
join stepwell.reply_types t on t.id = any (array[u.reply_type])
order by g.place
