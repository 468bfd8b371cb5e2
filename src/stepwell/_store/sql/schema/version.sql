-- Read the schema's version. Fails with undefined_table (42P01) where nothing was ever migrated. Locks: none.
select m.version from stepwell.meta m
