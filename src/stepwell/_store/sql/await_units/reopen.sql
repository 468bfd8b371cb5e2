-- Ask again what has no reply at a retried instance's unit: one page, the items from $2 on and below $3. $4: how many
-- more interactions may be out (null: all). Continuations that have not succeeded run again.
-- Keeps: completed interactions and continuations stay so. An interaction's timeout starts anew, so a token with the
--   earlier deadline, if it had one, no longer fits. Run in the transaction of operators/retry.sql, after
--   await_units/hold_ended.sql, page by page, and before await_units/resume.sql.
-- Index: the primary keys, interactions_item, instances_parent.
-- Locks: the interactions, and the continuations (the instance that asked and the unit are locked already).
-- Returns: one row: how many interactions of the page have a reply, how many are asked again, how many continuations
--   there are; the transports with something to send, and the queues with runnable continuations.
with again as materialized (
  select u.id, u.instance_id, u.timeout, u.is_sent
  from {schema}.await_units u
  where u.id = $1
), found as materialized (
  select q.id, q.status, row_number() over (partition by q.status = 'completed' order by q.item) as place
  from {schema}.interactions q
  where q.unit_id = $1 and q.item >= $2::integer and q.item < $3::integer
), asked as (
  update {schema}.interactions q
  set status = case when f.place > $4::integer then 'queued' when a.is_sent then 'waiting' else 'dispatched' end,
      finished_at = null, error = null, next_at = {schema}.now(), dispatched_at = null,
      deadline = case when f.place > $4::integer then null else {schema}.now() + a.timeout end
  from again a, found f
  where q.id = any (array[f.id]) and f.status <> 'completed'
  returning q.transport, a.is_sent
), continuing as materialized (
  select c.id, c.status
  from again a
  cross join lateral (
    select c.id, c.status
    from {schema}.instances c
    where c.parent_id = a.instance_id and c.parent_round is null and c.child_index >= $2::integer
      and c.child_index < $3::integer and c.continues_unit_id = a.id and c.status || '' <> 'done'
    offset 0
  ) c
), going as (
  update {schema}.instances c
  set status = 'runnable', attempt = 0, crashes = 0, fence = c.fence + 1, due_at = {schema}.now(),
      updated_at = {schema}.now(), finished_at = null, joined = false
  from continuing k
  where c.id = any (array[k.id]) and k.status in ('failed', 'cancelled') and c.status || '' in ('failed', 'cancelled')
  returning c.id, c.queue
), forgiven as (
  update {schema}.instance_data d
  set error = null
  from going g
  where d.id = any (array[g.id])
)
select (select count(*) from found f where f.status = 'completed')::integer as answered,
       (select count(*) from asked)::integer as asked,
       (select count(*) from continuing)::integer as continuing,
       array(select distinct k.transport from asked k where k.is_sent) as transports,
       array(select distinct g.queue from going g) as queues
