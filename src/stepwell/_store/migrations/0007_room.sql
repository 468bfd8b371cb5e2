-- Room on every page for one more version of all its rows, for the rows that steps replace: docs/decisions/0011.
-- It holds for pages that are written from now on; nothing is rewritten, and nobody waits for it.

alter table stepwell.instances set (fillfactor = 50);
alter table stepwell.instance_data set (fillfactor = 50);
