-- Commit a batch of outcomes, each only if its row is still the claim's: same worker, same fence, executing. One JSON
-- array of objects, without what an outcome does not set (docs/decisions/0012).
-- Keeps: a stale outcome changes nothing; side rows are written only for committed rows. With run-ahead ('executing') a
--   row stays the claim's, under a new fence, and no index is written, unless a signal has come. A row with a slot
--   never runs ahead. `needs` ([concurrency limit, own limit, rate limit, weight]), null for nearly every row, leaves
--   them as they are. The share is set only where the queue changes. `asks`: 'one' parks at a new unit, 'each' at the
--   one it has filled; a filled unit that is not continued is abandoned, and its visit is not used again. Only commits
--   write committed_fence; all else that ends a claim writes dropped_fence.
-- Index: the primary key, driven from the ids. See docs/internals/sql-plans.md.
-- Locks: the rows, no key update, skip locked: what another transaction holds is missing in the result, and the
--   committer sends it again; so no group commit waits for a caller's transaction.
-- Returns: the committed rows, with the parent at which this end is counted (once: `joined` stays), or the unit if it
--   is a continuation.
with mine as materialized (
  select o.*, i.joined as was_joined, o.status = 'executing' and not i.has_inbox as goes_on,
         i.filling_unit_id is not null and o.asks is distinct from 'each'
           and (o.keeps_awaits is not true or o.status in ('done', 'failed', 'cancelled')) as abandons
  from json_to_recordset($1::json) as o(
         id bigint, worker_id bigint, fence bigint, status text, step text, version integer, attempt integer,
         delay interval, queue text, priority smallint, switches_key boolean, concurrency_key text,
         hold text, hold_reason text, stores boolean, state jsonb, result jsonb, error jsonb,
         keeps_awaits boolean, awaits text[], timeout interval, spawns integer, needs jsonb, asks text)
  join {schema}.instances i on i.id = any (array[o.id])
  where i.worker_id = o.worker_id and i.fence = o.fence and i.status || '' = 'executing'
  for no key update of i skip locked
), committed as (
  update {schema}.instances i
  set status = case when m.status <> 'executing' then m.status when m.goes_on then 'executing' else 'runnable' end,
      step = m.step,
      version = m.version,
      attempt = coalesce(m.attempt, 0),
      crashes = 0,
      fence = i.fence + 1,
      committed_fence = i.fence,
      worker_id = case when m.goes_on then i.worker_id end,
      claimed_at = case when m.goes_on or m.status in ('done', 'failed', 'cancelled') then i.claimed_at end,
      due_at = case
                 when m.status = 'runnable' or m.status = 'executing' and not m.goes_on
                 then {schema}.instant() + coalesce(m.delay, interval '0')
                 else i.due_at
               end,
      hold = case when m.delay > interval '0' then 'due' else m.hold end,
      hold_reason = m.hold_reason,
      queue = coalesce(m.queue, i.queue),
      share = case
                when m.queue is null then i.share
                when m.queue = any (array(select q.name from {schema}.queues q where q.fair_by is not null))
                then hashtextextended(i.tenant, 0)
              end,
      priority = coalesce(m.priority, i.priority),
      concurrency_key = case when m.switches_key then m.concurrency_key else i.concurrency_key end,
      concurrency_limit = case when m.needs is null then i.concurrency_limit else m.needs ->> 0 end,
      own_limit = case when m.needs is null then i.own_limit else m.needs ->> 1 end,
      rate_limit = case when m.needs is null then i.rate_limit else m.needs ->> 2 end,
      weight = case when m.needs is null then i.weight else (m.needs ->> 3)::integer end,
      slot = null,
      awaits = case
                 when m.keeps_awaits then i.awaits
                 else m.awaits
               end,
      deadline = {schema}.instant() + m.timeout,
      visit = i.visit + m.abandons::integer
              + (m.status in ('awaiting_signal', 'awaiting_children', 'awaiting_external'))::integer,
      await_unit_id = case
                        when m.keeps_awaits then i.await_unit_id
                        when m.asks = 'one' then nextval('{schema}.await_units_id_seq')
                        when m.asks = 'each' then i.filling_unit_id
                      end,
      filling_unit_id = case when m.keeps_awaits and not m.abandons then i.filling_unit_id end,
      round = i.round + (m.spawns is not null)::integer,
      children_pending = coalesce(m.spawns, 0),
      joined = i.joined or (i.parent_id is not null and m.status in ('done', 'failed', 'cancelled')),
      updated_at = {schema}.instant(),
      finished_at = case when m.status in ('done', 'failed', 'cancelled') then {schema}.instant() end
  from mine m
  where i.id = any (array[m.id])
  returning i.id, i.status, i.queue, i.hold, i.watched, i.has_inbox, i.round,
            case when i.joined and not m.was_joined and i.continues_unit_id is null then i.parent_id end as joins,
            i.parent_round, case when i.joined and not m.was_joined then i.continues_unit_id end as continues,
            i.await_unit_id, m.abandons, m.stores, m.state, m.result, m.error
), stored as (
  update {schema}.instance_data d
  set state = coalesce(c.state, d.state), result = c.result, error = c.error, unchecked = false
  from committed c
  where d.id = any (array[c.id]) and c.stores
)
select id, status, queue, hold, watched, has_inbox, round, joins, parent_round, await_unit_id, abandons,
       continues
from committed
