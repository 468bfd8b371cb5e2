-- Claim the rows that may run, put the others in the line, and take the tokens. Run after limits/look.sql, in its
-- transaction and under its locks: nobody else can have changed what was decided upon.
-- Keeps: a slot is held by one executing row only (instances_slot); keys enter instances_concurrency_key in their
--   order, as in a claim. A claim counts from this statement on: the transaction may have begun long before, waiting.
-- Index: the primary keys. Locks: the rows (ours already); the buckets, in the order of their keys.
-- Returns: 'claimed': as a claim does; 'held': what was put aside, for whoever wants to know.
with admitted as materialized (
  select a.id, a.slot
  from unnest($2::bigint[], $3::integer[]) as a(id, slot)
  join stepwell.instances i on i.id = any (array[a.id])
  order by i.concurrency_key
), claimed as (
  update stepwell.instances i
  set status = 'executing', slot = a.slot, worker_id = $1, claimed_at = statement_timestamp(), fence = i.fence + 1,
      updated_at = stepwell.now()
  from admitted a
  where i.id = any (array[a.id])
  returning i.*
), denied as materialized (
  select d.id, d.hold, d.reason
  from unnest($4::bigint[], $5::text[], $6::text[]) as d(id, hold, reason)
), held as (
  update stepwell.instances i
  set hold = d.hold, hold_reason = d.reason
  from denied d
  where i.id = any (array[d.id])
  returning i.*
), debited as (
  insert into stepwell.buckets as b (key, tokens, refilled_at, next_at)
  select t.key, t.tokens, stepwell.now(), stepwell.now() + make_interval(secs => t.wait)
  from unnest($7::text[], $8::float8[], $9::float8[]) as t(key, tokens, wait)
  order by t.key collate "C"
  on conflict (key) do update
  set tokens = excluded.tokens, refilled_at = greatest(b.refilled_at, excluded.refilled_at), next_at = excluded.next_at
)
select 'claimed' as verdict, c.id, c.machine, c.version, c.concurrency_key, c.fence, c.step, c.attempt, c.crashes,
       c.tenant, c.key, c.claimed_at, c.has_inbox, c.awaits, c.parent_id, c.round, c.priority, c.due_at,
       c.concurrency_limit, c.own_limit, c.rate_limit, c.weight, c.await_unit_id
from claimed c
union all
select 'held', h.id, h.machine, h.version, h.concurrency_key, h.fence, h.step, h.attempt, h.crashes,
       h.tenant, h.key, null, h.has_inbox, h.awaits, h.parent_id, h.round, h.priority, h.due_at,
       h.concurrency_limit, h.own_limit, h.rate_limit, h.weight, null
from held h
order by priority, due_at, id
