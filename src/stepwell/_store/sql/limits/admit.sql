-- Claim the rows that may run, put the others on hold, and take the tokens. Run after limits/read_candidates.sql, in
-- its transaction and under its locks, so that nothing it has judged can change.
-- Keeps: one executing row per slot (instances_slot). Keys enter instances_concurrency_key in their order, as in
--   instances/claim.sql. The claim's time is this statement's: the transaction may have waited long.
-- Index: the primary keys.
-- Locks: the rows (locked already); the buckets, in the order of their keys.
-- Returns: 'claimed': as instances/claim.sql; 'held': the rows that were put on hold.
with admitted as materialized (
  select a.id, a.slot
  from unnest($2::bigint[], $3::integer[]) as a(id, slot)
  join {schema}.instances i on i.id = any (array[a.id])
  order by i.concurrency_key
), claimed as (
  update {schema}.instances i
  set status = 'executing', slot = a.slot, worker_id = $1, claimed_at = statement_timestamp(), fence = i.fence + 1,
      updated_at = {schema}.now()
  from admitted a
  where i.id = any (array[a.id])
  returning i.*
), denied as materialized (
  select d.id, d.hold, d.reason
  from unnest($4::bigint[], $5::text[], $6::text[]) as d(id, hold, reason)
), held as (
  update {schema}.instances i
  set hold = d.hold, hold_reason = d.reason
  from denied d
  where i.id = any (array[d.id])
  returning i.*
), debited as (
  -- The tokens and the wait that the worker has computed.
  insert into {schema}.buckets as b (key, tokens, refilled_at, next_at)
  select t.key, t.tokens, {schema}.now(), {schema}.now() + make_interval(secs => t.wait)
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
