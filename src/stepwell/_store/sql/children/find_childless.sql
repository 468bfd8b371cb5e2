-- Find parents that wait for children of which none lives: there are none unless rows were deleted by hand.
-- Keeps: looks at up to 500 waiting parents after $1, so that repeated calls reach all of them; at their children from
--   the last one, which mostly lives. children/recount.sql judges again what is found.
-- Index: instances_joining; instances_parent, one probe per parent. See docs/internals/sql-plans.md.
-- Locks: none.
-- Returns: the parents; and the id up to which it looked, unless that was all.
with looked as materialized (
  select i.id, i.round
  from {schema}.instances i
  where i.status = 'awaiting_children' and i.id > $1
  order by i.id
  limit 500
)
select (select max(l.id) from looked l having count(*) = 500) as last,
       array(select l.id
             from looked l
             where not exists (select from {schema}.instances c
                               where c.parent_id = l.id and c.parent_round = l.round
                                 and c.status || '' not in ('done', 'failed', 'cancelled') and not c.joined
                               order by c.parent_round desc, c.child_index desc
                               offset 0)) as ids
