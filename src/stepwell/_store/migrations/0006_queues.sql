-- Queues: what operators and workers say about them. A queue without a row here is an ordinary one.

create table stepwell.queues (
  name        text collate "C" primary key,
  paused_at   timestamptz,                           -- null: it is claimed from
  paused_by   text,
  reason      text,                                  -- of the pause, in words
  changed_at  timestamptz not null,

  constraint pause_has_time check (paused_at is not null or (paused_by is null and reason is null))
);


-- Whether a queue may be claimed from; asked by every claim, inside its statement.
-- Keeps: once a pause has committed, nothing is claimed. Claims share a lock that a pause takes alone: so it waits for
-- claims under way, and a claim that waited for it looks with a snapshot of its own (volatile), newer than that of the
-- claiming statement.
create function stepwell._may_claim(queue text)
returns boolean
language plpgsql volatile as $$
begin
  perform pg_advisory_xact_lock_shared(hashtextextended('stepwell queue:' || queue, 0));
  return not exists (select from stepwell.queues q where q.name = queue and q.paused_at is not null);
end
$$;
