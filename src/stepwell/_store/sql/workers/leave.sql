-- End workers' leases now: the reaper returns their claims. The rows stay, because they tell which steps had started,
-- and whether the worker left by itself ($2) or died.
-- Locks: the worker's row.
update {schema}.workers w
set lease_until = '-infinity', running = 0, has_left = w.has_left or $2
where w.id = any ($1::bigint[])
