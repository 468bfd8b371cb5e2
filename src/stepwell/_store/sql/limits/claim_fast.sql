-- Claim from the head of queue $2 rows that need slots of concurrency limits and nothing else, and put on hold those
-- for which there is no slot. One round trip instead of six, in a function, because slots must be read with a snapshot
-- later than the locks.
-- Keeps: what those keep. If a row of the window is anything else, or its limit is not declared, nothing is claimed:
--   less urgent rows would overtake it. The transaction does not wait for the disk (workers/mark_started.sql does,
--   before a step runs), so it must not be part of a transaction that has to be durable.
-- Index: instances_claim, read in order until the limit; instances_slot once per limit; the primary key.
-- Locks: the limits seen at the head (limits/lock_rows.sql), then the rows of the window, skip locked. With the rows
--   first, a commit would wait for a claim that waits for a limit (see "Locks and snapshots" in
--   docs/internals/sql-plans.md).
-- Returns: 'claimed' and 'held' rows, most urgent first; before them 'missed', if other rows arrived meanwhile or lie
--   behind locked rows; 'mixed' alone: left to instances/claim.sql; no row: the queue has nothing to claim.
select c.verdict, c.id, c.machine, c.version, c.fence, c.step, c.attempt, c.crashes, c.tenant, c.key, c.claimed_at,
       c.has_inbox, c.awaits, c.parent_id, c.round, c.priority, c.concurrency_limit, c.own_limit, c.weight,
       c.await_unit_id
from {schema}._claim_slots($1::bigint, $2::text, $3::integer, $4::text[], $5::text[]) c
