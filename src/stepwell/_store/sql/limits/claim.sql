-- Claim from the head of a queue, $2, what needs slots of concurrency limits and nothing else, and put into their lines
-- what finds none, in one round trip: what instances/claim, lock_rows, look and admit.sql do in six. It is a function
-- (0013), because it must look at the slots with a snapshot that is younger than its locks.
-- Keeps: what those keep: never more than the limit, most urgent first, nothing of a paused queue or of a version that
--   is not in $4. If one row of the window is anything else, or its limit is not declared, nothing is claimed: all is
--   left to instances/claim.sql, for that one would be passed by what is less urgent.
--   Nobody waits for the disk, so that the next one has the limit at once; workers/begin.sql does, before a step runs.
--   So it is no part of a transaction that has to be durable.
-- Index: instances_claim, read in order until the limit; instances_slot once per limit; the primary key.
-- Locks: those of limits/lock_rows.sql, of the limits seen at the head; then the rows of the window, skip locked. (The
--   rows first, and a commit would wait for who waits for the limit: to lock a row that was claimed since the snapshot
--   locks it as it is now, before it is looked at again and left.)
-- Returns: 'claimed' and 'held' rows, most urgent first; before them 'missed', if there is something else, which came
--   meanwhile or stands behind rows in other hands; 'mixed' alone: it is for instances/claim.sql; no row: nothing is
--   there.
select c.verdict, c.id, c.machine, c.version, c.fence, c.step, c.attempt, c.crashes, c.tenant, c.key, c.claimed_at,
       c.has_inbox, c.awaits, c.parent_id, c.round, c.priority, c.concurrency_limit, c.own_limit, c.weight,
       c.await_unit_id
from stepwell._claim_slots($1::bigint, $2::text, $3::integer, $4::text[], $5::text[]) c
