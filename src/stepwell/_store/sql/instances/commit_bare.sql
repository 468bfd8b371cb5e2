-- Commit a batch of bare outcomes, all of one worker, each only if its row is still the claim's.
-- Bare is what only ends as done, or only goes to another step: nearly every outcome. All others: commit.sql.
-- They come as texts that are taken apart here: arrays of numbers and statuses as their literals, steps, states and
--   results between separators (\x1e, which JSON escapes), what is empty being null. The driver would look at each
--   element of an array, and for each object of a JSON array a record of 24 columns would be made.
-- $9: the parents of those that are ends of children, if they are to be counted here; none of them is in the batch.
--   '{}': whoever sends this counts them, in the same transaction.
-- Keeps: a late worker's outcome changes nothing (a row has a worker if and only if it executes, says a check).
--   A row that is to go on ('executing': run-ahead) stays the claim's, under a new fence, unless a signal has come for
--   it meanwhile. If it goes on, no indexed column changes, and no index is told. An end is counted where it is
--   written, once: parents are locked before, and whose is locked by somebody else, or gone, or of an answer that went
--   on by itself, is left out. (A parent that changed since the snapshot is read anew by the update, as any row is.)
-- Index: the primary keys, driven from the ids (any (array[…]): see commit.sql).
-- Locks: the parents by id, skip locked; the rows, by the update itself. Who waits 10 ms for a transaction that is not
--   the engine's gives up, and nothing is committed; commit.sql, which locks before it writes, and costs twice as much,
--   passes such rows over.
-- Returns: one row: how many are committed; their ids, if they are fewer than $2; the ids of those that were to go on
--   and do not; that a client waits for; that have an inbox; that are ends to be counted, with the parent's round, or
--   the unit, they belong to; queues of parents that go on. What has been counted before (a child that was retried) is
--   not committed here: only commit.sql can tell.
with parents as materialized (
  select i.id
  from stepwell.instances i
  where i.id = any ($9::text::bigint[])
  order by i.id
  for no key update skip locked
), committed as (
  update stepwell.instances i
  set status = case when o.status = 'executing' and i.has_inbox then 'runnable' else o.status end,
      step = o.step,
      attempt = 0,
      crashes = 0,
      fence = i.fence + 1,
      worker_id = case when o.status = 'executing' and not i.has_inbox then i.worker_id end,
      claimed_at = case when o.status = 'executing' and not i.has_inbox then i.claimed_at end,
      due_at = case
                 when o.status = 'runnable' or o.status = 'executing' and i.has_inbox then stepwell.now()
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
      updated_at = stepwell.now(),
      finished_at = case when o.status = 'done' then stepwell.now() end
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
  update stepwell.instance_data d
  set state = coalesce(c.state::jsonb, d.state), result = c.result::jsonb, error = null, unchecked = false
  from committed c
  where d.id = any (array[c.id]) and (c.state is not null or c.result is not null)
), ends as (
  select c.parent_id, c.parent_round, count(*)::integer as number
  from committed c
  where c.joins and $9 <> '{}'
  group by c.parent_id, c.parent_round
), counted as (
  update stepwell.instances i
  set children_pending = greatest(i.children_pending - e.number, 0),
      status = case when i.status = 'awaiting_children' and i.children_pending <= e.number
                    then 'runnable' else i.status end,
      due_at = case when i.status = 'awaiting_children' and i.children_pending <= e.number
                    then stepwell.now() else i.due_at end
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
