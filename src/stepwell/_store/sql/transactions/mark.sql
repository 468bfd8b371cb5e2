-- Mark the transaction of a step as ours, for as long as it lasts: $1 is '<instance>:<fence>'.
-- Keeps: who finds the mark is still in that very transaction. A worker that is frozen or cut off does not hold the
--   locks of its step for longer than the step may run ($2, milliseconds).
-- Index: none. Locks: none. Returns: the role the connection came with.
select set_config('stepwell.step', $1, true),
       set_config('idle_in_transaction_session_timeout', $2, true),
       current_setting('role') as role
