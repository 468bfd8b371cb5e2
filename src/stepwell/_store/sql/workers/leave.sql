-- End workers' leases now: what they still carry is the reaper's. The rows stay for what they say of begun steps, and
-- whether their worker left by itself ($2) or died.
-- Locks: the worker's row.
update stepwell.workers w
set lease_until = '-infinity', running = 0, has_left = w.has_left or $2
where w.id = any ($1::bigint[])
