-- Deactivate versions that are no longer the newest of their name, before machines/activate.sql activates the newest.
-- Locks: the rows that change.
update {schema}.machines m
set active = false
where m.name = any ($1::text[]) and m.active
  and m.version < (select max(n.version) from {schema}.machines n where n.name = m.name)
