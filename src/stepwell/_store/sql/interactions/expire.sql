-- End questions whose time is over. Run in a transaction that has locked their instances before this statement.
-- Keeps: what was answered meanwhile stays answered; what was asked anew is not ended.
-- Index: the primary key (|| '': no other). Locks: the questions.
-- Returns: the units at which they are to be counted, with how many.
with ended as (
  update stepwell.interactions q
  set status = 'timed_out', finished_at = stepwell.now()
  where q.id = any ($1::uuid[]) and q.status || '' in ('waiting', 'dispatching', 'dispatched')
    and q.deadline <= stepwell.now()
  returning q.unit_id
)
select e.unit_id, count(*)::integer as number from ended e group by e.unit_id
