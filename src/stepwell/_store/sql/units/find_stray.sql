-- Find open units that their instance neither waits for nor fills; such whose questions have all ended, with no answer
-- still on its way by itself; and such with questions queued although their window has room, or although fewer, or
-- more, are out than are counted: there should be none. Looks at 500 open units after the instance $1, so that
-- everything is looked at in turn; at their questions from the last one, which is mostly open. What is out lies before
-- the first that is queued, mostly right before it: of long units 300 questions are looked at there, which tells
-- whether any is out, and of shorter ones how many. (A long one with a place of its window lost goes on by the others.)
-- What is found is judged once more, by recount.sql or close_stray.sql.
-- Index: await_units_open, the primary key, interactions_item, interactions_queued, instances_continuing. Locks: none.
-- Returns: instance and unit of each; and, with no unit, the instance up to which it looked, unless that was all.
with looked as materialized (
  select u.id, u.instance_id, u.is_filled, u.in_flight, u."window"
  from stepwell.await_units u
  where u.status = 'waiting' and u.instance_id > $1
  order by u.instance_id
  fetch first 500 rows with ties
)
select l.instance_id, l.id as unit_id
from looked l
where not exists (select from stepwell.instances i
                  where i.id = l.instance_id and l.id in (i.await_unit_id, i.filling_unit_id)
                  offset 0)
   or l.is_filled and not exists (select from stepwell.interactions q
                                  where q.unit_id = l.id
                                    and q.status in ('queued', 'waiting', 'dispatching', 'dispatched')
                                  order by q.item desc
                                  offset 0)
                  and not exists (select from stepwell.instances c
                                  where c.continues_unit_id = l.id
                                    and c.status not in ('done', 'failed', 'cancelled')
                                  offset 0)
   or l.is_filled and l."window" is not null and exists (
        select
        from (select q.item
              from stepwell.interactions q
              where q.unit_id = l.id and q.status = 'queued'
              order by q.item
              limit 1) f
        cross join lateral (
          select count(*) as seen, least(count(*) filter (where b.finished_at is null), l."window") as out
          from (select o.finished_at
                from stepwell.interactions o
                where o.unit_id = l.id and o.item < f.item
                order by o.item desc
                limit 300) b
        ) n
        where l.in_flight < l."window" or n.out = 0 or n.out > l.in_flight or n.seen < 300 and n.out < l.in_flight
        offset 0)
union all
select max(l.instance_id), null from looked l having count(*) >= 500
