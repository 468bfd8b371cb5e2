-- Drop whole inboxes, with what they remember. Index: signals_inbox. Locks: the rows.
delete from stepwell.signals s
where s.instance_id = any ($1::bigint[])
