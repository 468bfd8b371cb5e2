-- Deliver signals as deliver_plain.sql does, and let those who wake in queue $5 go on in the hands of worker $4, which
-- has a slot for each: as if it had claimed them, but no row is written a second time, and none goes through the
-- claim's index.
-- $1 to $3: as in deliver_plain.sql. $6: what the worker runs.
-- Keeps: what deliver_plain.sql keeps. None goes on in hand that a claim would have left: of a paused queue or a fair
--   one, that needs a key or a limit, of another version, a suspect; nor one that is handed more than its state and
--   this signal. Whether the worker lives needs no look: what the dead carry is returned.
-- Index: the primary key (any (array[…]): see instances/commit.sql). Locks: the queue, shared; the targets, in the
--   order of ids, those that go on in hand first. Waits 10 ms for one at most, since slots are kept meanwhile, and who
--   delivers to some of the same may wait for it in turn; then nothing is delivered.
-- Returns: the ids that were reached and do not go on here, as deliver_plain.sql does; and those that do, those that
--   are alike in one row, each with its signal as it is stored. Since when: the clock, and not the transaction's begin:
--   other claims may have been noted since.
with given as materialized (
  select g.id, g.name, g.payload::jsonb as payload
  from unnest($1::text::bigint[], string_to_array($2::text, E'\x1e'), string_to_array($3::text, E'\x1e'))
       as g(id, name, payload)
), room as materialized (
  select clock_timestamp() as claimed_at
  where (select set_config('lock_timeout', '10', true)) is not null and stepwell._may_claim($5)
), in_hand as (
  update stepwell.instances i
  set status = 'executing', worker_id = $4::bigint, claimed_at = r.claimed_at, fence = i.fence + 1, has_inbox = true,
      due_at = stepwell.now(), deadline = null, updated_at = stepwell.now()
  from given g cross join room r
  where i.id = any (array[g.id]) and i.status || '' = 'awaiting_signal' and g.name = any (i.awaits)
    and i.queue || '' = $5::text
    and i.share is null and i.concurrency_key is null and i.concurrency_limit is null and i.rate_limit is null
    and i.attempt = 0 and i.crashes = 0 and (i.machine || '@' || i.version) = any ($6::text[])
    and not i.has_inbox and i.round = 0 and i.await_unit_id is null
  returning nextval('stepwell.signals_id_seq') as signal_id, g.name, g.payload, i.queue, i.claimed_at, i.id, i.fence,
            i.machine, i.version, i.step, i.tenant, i.key, i.awaits, i.parent_id, i.priority
), reached as (
  update stepwell.instances i
  set has_inbox = true,
      status = case when i.status = 'awaiting_signal' and g.name = any (i.awaits) then 'runnable' else i.status end,
      due_at = case when i.status = 'awaiting_signal' and g.name = any (i.awaits) then stepwell.now() else i.due_at end,
      deadline = case when i.status = 'awaiting_signal' and g.name = any (i.awaits) then null else i.deadline end
  from given g
  where i.id = any (array[g.id]) and i.status || '' not in ('done', 'failed', 'cancelled')
    and g.id not in (select h.id from in_hand h)
  returning nextval('stepwell.signals_id_seq') as signal_id, g.name, g.payload, i.id,
            case when i.status = 'runnable' and i.hold is null then i.queue end as queue
), stored as (
  insert into stepwell.signals (id, instance_id, sent_at, name, payload)
  overriding system value
  select s.signal_id, s.id, stepwell.now(), s.name, s.payload
  from (select h.signal_id, h.id, h.name, h.payload from in_hand h
        union all
        select r.signal_id, r.id, r.name, r.payload from reached r) s
)
select r.queue, string_agg(r.id::text, ',') as ids, null as claimed_at, null as sent_at, null as machine,
       null as version, null as step, null as tenant, null as awaits, null as priority, null as fences,
       null as keys, null as parents, null as signals, null as names, null as payloads
from reached r
group by r.queue
union all
select h.queue, string_agg(h.id::text, ','), h.claimed_at, stepwell.now(), h.machine,
       h.version, h.step, h.tenant, h.awaits, h.priority, string_agg(h.fence::text, ','),
       array_agg(h.key), array_agg(h.parent_id), string_agg(h.signal_id::text, ','),
       string_agg(h.name, E'\x1e'), string_agg(h.payload::text, E'\x1e')
from in_hand h
group by h.queue, h.claimed_at, h.machine, h.version, h.step, h.tenant, h.awaits, h.priority
