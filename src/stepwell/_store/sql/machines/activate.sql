-- Let the newest version of each name be the active one. Run after machines/register.sql, in its transaction.
-- Locks: the rows that change. The old one steps down in activate's first pass: see machines/deactivate.sql.
update stepwell.machines m
set active = true
where m.name = any ($1::text[]) and not m.active
  and m.version = (select max(n.version) from stepwell.machines n where n.name = m.name)
