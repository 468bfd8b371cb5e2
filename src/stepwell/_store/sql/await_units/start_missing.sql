-- Start continuations that are missing; there should be none. Run after the instances that asked were locked.
-- Keeps: as interactions/complete.sql; only at waiting units without open interactions and without living
--   continuations.
-- Index: the primary keys, interactions_item, instances_parent, instances_continuing.
-- Locks: none.
-- Returns: unit and queue of each.
with units as materialized (
  select u.id, u.instance_id, u.item_step
  from {schema}.await_units u
  where u.id = any ($1::bigint[]) and u.status || '' = 'waiting' and u.is_filled and u.item_step is not null
    and not exists (select from {schema}.interactions q
                    where q.unit_id = u.id and q.status in ('queued', 'waiting', 'dispatching', 'dispatched')
                    offset 0)
    and not exists (select from {schema}.instances c
                    where c.continues_unit_id = u.id and c.status not in ('done', 'failed', 'cancelled')
                    offset 0)
), continuing as materialized (
  select u.id as unit_id, u.item_step, q.item, q.reply, p.id as parent_id, p.tenant, p.machine, p.version, p.queue,
         p.priority, nextval('{schema}.instances_id_seq') as id
  from units u
  join {schema}.instances p on p.id = any (array[u.instance_id])
  join {schema}.interactions q on q.unit_id = any (array[u.id]) and q.status || '' = 'completed'
  where not exists (select from {schema}.instances c
                    where c.parent_id = u.instance_id and c.parent_round is null and c.child_index = q.item
                      and c.continues_unit_id = u.id
                    offset 0)
), {ctes started, stored of interactions/complete}
)
select c.unit_id, c.queue from continuing c
