-- Drop whole inboxes of instances that are done, with what they remember. One that was restarted meanwhile keeps its
-- inbox: somebody may have signalled it since. Index: signals_inbox, the primary key. Locks: the rows.
-- $2: not part of the transaction that ended them; then it need not wait for the disk, since a restart and the pruner
-- drop what it leaves.
with unsynced as materialized (
  select case when $2::boolean then set_config('synchronous_commit', 'off', true) end
)
delete from stepwell.signals s
using unsynced
where s.instance_id = any ($1::bigint[])
  and exists (select from stepwell.instances i
              where i.id = s.instance_id and i.status || '' = 'done'
              offset 0)
