-- Find inconsistent units, of which there should be none: open units that their instance neither waits for nor fills;
-- filled ones with all interactions and continuations ended; and ones with queued interactions although the window has
-- room, or more or fewer are out than counted.
-- Keeps: looks at 500 open units after the instance $1, so that repeated calls reach all of them; at interactions only
--   if no continuation lives (otherwise all of a large unit may have ended), from the last one, which is mostly open.
--   What is out lies right before the first queued one: 300 interactions are read there, which tells whether any is
--   out, and of shorter units how many. (A longer unit with one place of its window lost continues with the others.)
--   await_units/recount.sql or close_orphaned.sql judges again.
-- Index: await_units_open, the primary key, interactions_item, interactions_queued, instances_continuing.
-- Locks: none.
-- Returns: instance and unit of each; and, with no unit, the instance up to which it looked, unless that was all.
with looked as materialized (
  select u.id, u.instance_id, u.is_filled, u.in_flight, u."window"
  from {schema}.await_units u
  where u.status = 'waiting' and u.instance_id > $1
  order by u.instance_id
  fetch first 500 rows with ties
)
select l.instance_id, l.id as unit_id
from looked l
where not exists (select from {schema}.instances i
                  where i.id = l.instance_id and l.id in (i.await_unit_id, i.filling_unit_id)
                  offset 0)
   or case when l.is_filled and not exists (select from {schema}.instances c
                                            where c.continues_unit_id = l.id
                                              and c.status not in ('done', 'failed', 'cancelled')
                                            offset 0)
           then not exists (select from {schema}.interactions q
                            where q.unit_id = l.id
                              and q.status in ('queued', 'waiting', 'dispatching', 'dispatched')
                            order by q.item desc
                            offset 0)
           else false end
   or l.is_filled and l."window" is not null and exists (
        select
        from (select q.item
              from {schema}.interactions q
              where q.unit_id = l.id and q.status = 'queued'
              order by q.item
              limit 1) f
        cross join lateral (
          select count(*) as seen, least(count(*) filter (where b.finished_at is null), l."window") as out
          from (select o.finished_at
                from {schema}.interactions o
                where o.unit_id = l.id and o.item < f.item
                order by o.item desc
                limit 300) b
        ) n
        where l.in_flight < l."window" or n.out = 0 or n.out > l.in_flight or n.seen < 300 and n.out < l.in_flight
        offset 0)
union all
select max(l.instance_id), null from looked l having count(*) >= 500
