-- Delete workers whose lease has ended and who carry nothing any more.
-- Keeps: a row is needed until what its worker had begun is reaped.
-- Index: instances_executing, one probe per worker (offset 0: never joined). Locks: the rows, skip locked.
with buried as materialized (
  select w.id
  from stepwell.workers w
  where w.lease_until <= pg_catalog.now()
    and not exists (select from stepwell.instances i where i.status = 'executing' and i.worker_id = w.id
                    offset 0)
  for no key update of w skip locked
)
delete from stepwell.workers w
using buried b
where w.id = b.id
returning w.id
