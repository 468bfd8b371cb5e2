-- Let versions step down that are no longer the newest of their name. Locks: the rows that change.
update stepwell.machines m
set active = false
where m.name = any ($1::text[]) and m.active
  and m.version < (select max(n.version) from stepwell.machines n where n.name = m.name)
