-- Pause a queue: nothing is claimed from it until it is resumed.
-- Keeps: a claim that checks after this commit sees the pause (_may_claim); the caller waits for claims that checked
--   before (queues/find_claiming.sql). The last pause's author and reason are kept.
-- Index: the primary key.
-- Locks: its row.
-- Returns: one row: whether it was paused already.
insert into {schema}.queues as q (name, paused_at, paused_by, reason, changed_at)
values ($1, {schema}.now(), $2::text, $3::text, {schema}.now())
on conflict (name) do update
set paused_at = coalesce(q.paused_at, excluded.paused_at), paused_by = excluded.paused_by, reason = excluded.reason,
    changed_at = excluded.changed_at
returning q.paused_at < q.changed_at as was_paused
