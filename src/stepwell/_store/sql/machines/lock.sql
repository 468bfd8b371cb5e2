-- Let one registration happen at a time. Locks: one advisory lock, to the end of the transaction.
select pg_advisory_xact_lock(hashtextextended('stepwell.machines', 0))
