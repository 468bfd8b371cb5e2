-- One registration at a time, to the end of the transaction.
select pg_advisory_xact_lock(hashtextextended('stepwell.machines', 0))
