-- Mark the transaction of a step as the engine's until it ends ($1 is '<instance>:<fence>'), before the author gets it.
-- Keeps: a session that finds the mark is still in that transaction. A frozen worker does not hold its step's locks
--   much longer than its lease: the session has the worker's id ($3) in its name, and the reaper ends it
--   (workers/end_stalled.sql). Without a reaper the server ends it, once the step may not run any more ($2,
--   milliseconds).
-- Index: none.
-- Locks: none.
-- Returns: the role the connection came with.
select set_config('{schema}.step', $1, true),
       set_config('idle_in_transaction_session_timeout', $2, true),
       set_config('application_name', '{application} step ' || $3::bigint, true),
       current_setting('role') as role
