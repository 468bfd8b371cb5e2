-- Commit a batch of simple outcomes of one worker, each only if its row is still the claim's. Simple: ends as done, or
-- goes to another step; nearly all. They come as array literals and as texts with separators (\x1e; empty: null). $9:
-- the parents at which ends are counted here, none in the batch; '{}': the caller counts, in the same transaction.
-- Keeps: a stale outcome changes nothing (a check: a row has a worker if and only if it executes). Run-ahead is as in
--   instances/commit.sql. An end is counted once, with its write: an end is left out if its parent is locked elsewhere
--   or gone, if it is a continuation's, or if it was counted before (a retried child).
-- Index: the primary keys, driven from the ids. See docs/internals/sql-plans.md.
-- Locks: the parents by id, skip locked; the rows, by the update. After 10 ms of waiting for another transaction all
--   fails; instances/commit.sql, which skips such rows, costs twice as much.
-- Returns: one row: how many are committed; the ids: of all, if fewer than $2; of those that were to run ahead and do
--   not, have a waiting client, an inbox, or an end to be counted, with parent's round or unit; the queues of woken
--   parents.
with parents as materialized (
  select i.id
  from {schema}.instances i
  where i.id = any ($9::text::bigint[])
  order by i.id
  for no key update skip locked
), committed as (
  update {schema}.instances i
  set status = case when o.status = 'executing' and i.has_inbox then 'runnable' else o.status end,
      step = o.step,
      attempt = 0,
      crashes = 0,
      fence = i.fence + 1,
      committed_fence = i.fence,
      worker_id = case when o.status = 'executing' and not i.has_inbox then i.worker_id end,
      claimed_at = case when o.status = 'done' or o.status = 'executing' and not i.has_inbox then i.claimed_at end,
      due_at = case
                 when o.status = 'runnable' or o.status = 'executing' and i.has_inbox then {schema}.instant()
                 else i.due_at
               end,
      hold_reason = null,
      awaits = null,
      deadline = null,
      visit = i.visit + (i.filling_unit_id is not null)::integer,
      await_unit_id = null,
      filling_unit_id = null,
      children_pending = 0,
      slot = null,
      joined = i.joined or (i.parent_id is not null and o.status = 'done'),
      updated_at = {schema}.instant(),
      finished_at = case when o.status = 'done' then {schema}.instant() end
  from unnest($3::text::bigint[], $4::text::bigint[], $5::text::text[], string_to_array($6::text, E'\x1e'),
              string_to_array($7::text, E'\x1e', ''), string_to_array($8::text, E'\x1e', ''))
       as o(id, fence, status, step, state, result)
  where (select set_config('lock_timeout', '10', true)) is not null
    and i.id = any (array[o.id]) and i.worker_id = $1::bigint and i.fence = o.fence
    and (o.status <> 'done' or not i.joined)
    and ($9 = '{}' or o.status <> 'done' or i.parent_id is null
         or i.parent_id = any (array(select p.id from parents p)) and i.continues_unit_id is null)
  returning i.id, o.status = 'executing' and i.has_inbox as is_sent_back, i.watched, i.has_inbox, o.state, o.result,
            o.status = 'done' and i.parent_id is not null as joins, i.parent_id, i.parent_round, i.continues_unit_id
), stored as (
  update {schema}.instance_data d
  set state = coalesce(c.state::jsonb, d.state), result = c.result::jsonb, error = null, unchecked = false
  from committed c
  where d.id = any (array[c.id]) and (c.state is not null or c.result is not null)
), ends as (
  select c.parent_id, c.parent_round, count(*)::integer as number
  from committed c
  where c.joins and $9 <> '{}'
  group by c.parent_id, c.parent_round
), counted as (
  update {schema}.instances i
  set children_pending = greatest(i.children_pending - e.number, 0),
      status = case when i.status = 'awaiting_children' and i.children_pending <= e.number
                    then 'runnable' else i.status end,
      due_at = case when i.status = 'awaiting_children' and i.children_pending <= e.number
                    then {schema}.instant() else i.due_at end
  from ends e
  where i.id = any (array[e.parent_id]) and i.round = e.parent_round
  returning i.id, i.queue, i.status, i.hold, i.children_pending
)
select count(*)::integer as number,
       case when count(*) < $2::integer then coalesce(array_agg(c.id), '{}') end as ids,
       array_agg(c.id) filter (where c.is_sent_back) as sent_back,
       array_agg(c.id) filter (where c.watched) as watched,
       array_agg(c.id) filter (where c.has_inbox) as with_inbox,
       array_agg(c.id) filter (where c.joins and $9 = '{}') as joining,
       array_agg(c.parent_round) filter (where c.joins and $9 = '{}') as parent_rounds,
       array_agg(c.continues_unit_id) filter (where c.joins and $9 = '{}') as continues,
       (select array_agg(p.queue) from counted p
        where p.status = 'runnable' and p.hold is null and p.children_pending = 0) as freed_queues
from committed c
