-- Make the newest version of each name the active one. Run after machines/deactivate.sql, in the transaction of
-- machines/register.sql.
-- Locks: the rows that change.
update {schema}.machines m
set active = true
where m.name = any ($1::text[]) and not m.active
  and m.version = (select max(n.version) from {schema}.machines n where n.name = m.name)
