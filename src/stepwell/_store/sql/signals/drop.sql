-- Drop whole inboxes of instances that are done, with what they remember. One that was restarted meanwhile keeps its
-- inbox: somebody may have signalled it since. Index: signals_inbox, the primary key. Locks: the rows.
delete from stepwell.signals s
where s.instance_id = any ($1::bigint[])
  and exists (select from stepwell.instances i
              where i.id = s.instance_id and i.status || '' = 'done'
              offset 0)
