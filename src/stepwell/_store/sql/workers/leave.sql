-- End a worker's lease now: what it still carries is the reaper's. The row stays for what it says of begun steps.
-- Locks: the worker's row.
update stepwell.workers w
set lease_until = '-infinity', running = 0
where w.id = any ($1::bigint[])
