-- Find executing rows of workers known to be dead.
-- Index: instances_executing.
-- Locks: none.
-- Returns: up to 1,000 rows: id, concurrency key and parent.
select i.id, i.concurrency_key, i.parent_id
from {schema}.instances i
where i.status = 'executing' and i.worker_id = any ($1::bigint[])
limit 1000
