-- The foundation: the clock, the narrow hot row with its side table, machines and workers.
-- Names are collated "C": index order does not hang on the locale library of the server, and locks taken
-- "in key order" are taken in one order everywhere.

-- The engine's clock. STABLE and a single expression, so that the planner inlines it. The test kit replaces
-- its body, in its own database only, with one that adds an offset. Leases never use it: they are real time.
create function stepwell.now() returns timestamptz
  language sql stable parallel safe
  return pg_catalog.now();


-- One row per instance: all that the claim, the commit and the reaper touch, and nothing wide.
create table stepwell.instances (
  id                bigint generated always as identity primary key,
  fence             bigint not null default 0,       -- grows with each claim and each commit
  worker_id         bigint,                          -- whose claim this is; null unless executing
  parent_id         bigint,
  await_unit_id     bigint,                          -- the open question, while awaiting_external
  due_at            timestamptz not null,            -- not before; also the order within a priority
  claimed_at        timestamptz,                     -- real time of the claim
  deadline          timestamptz,                     -- wakes a parked instance
  created_at        timestamptz not null,
  updated_at        timestamptz not null,
  finished_at       timestamptz,
  version           integer not null,
  attempt           integer not null default 0,
  crashes           integer not null default 0,      -- in a row, of the current step
  visit             integer not null default 0,      -- grows at each park
  round             integer not null default 0,      -- of its own latest spawn
  parent_round      integer,                         -- the parent's round that this child belongs to
  child_index       integer,                         -- its place in that round
  children_pending  integer not null default 0,
  weight            integer not null default 1,
  priority          smallint not null default 0,     -- lower first
  joined            boolean not null default false,  -- this child's end is counted at its parent
  watched           boolean not null default false,  -- a client waits: notify it of the next rest
  has_inbox         boolean not null default false,  -- there may be signals to load
  tenant            text collate "C" not null default '',
  machine           text collate "C" not null,
  step              text collate "C" not null,
  status            text collate "C" not null default 'runnable',
  hold              text collate "C",                -- why a runnable row is not in the claim's index
  hold_reason       text,                            -- the same in words, where the hold alone does not say it
  queue             text collate "C" not null,
  concurrency_key   text collate "C",
  concurrency_limit text collate "C",
  rate_limit        text collate "C",
  awaits            text[] collate "C",
  key               text collate "C",
  key_scope         text collate "C",
  guard             text collate "C" generated always as (
    case
      when key_scope = 'forever' then key
      when key_scope = 'live' and status not in ('done', 'failed', 'cancelled') then key
    end) stored,                                     -- the key while it is occupied

  constraint status_known check (status in ('runnable', 'executing', 'awaiting_signal', 'awaiting_children',
                                            'awaiting_external', 'done', 'failed', 'cancelled')),
  constraint hold_known check (hold in ('due', 'key', 'limit', 'rate', 'version', 'unfit', 'paused')),
  constraint only_runnable_is_held check (hold is null or status = 'runnable'),
  constraint executing_has_worker check ((status = 'executing') = (worker_id is not null)),
  constraint finished_has_end check ((status in ('done', 'failed', 'cancelled')) = (finished_at is not null)),
  constraint awaiting_signal_has_names check (status <> 'awaiting_signal' or awaits is not null),
  constraint key_has_scope check ((key is null) = (key_scope is null) and key_scope in ('live', 'forever')),
  constraint children_not_negative check (children_pending >= 0)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.05);

-- Order within a queue; holds only what may run now, so that the claim reads no row it can not take.
create index instances_claim on stepwell.instances (queue, priority, due_at, id)
  where status = 'runnable' and hold is null;
-- The next due instant.
create index instances_due on stepwell.instances (due_at)
  where status = 'runnable' and hold = 'due';
-- Who runs what: for the reaper and the heartbeat. No commit goes through it.
create index instances_executing on stepwell.instances (worker_id)
  where status = 'executing';
-- Mutual exclusion: at most one executing instance per concurrency key.
create unique index instances_concurrency_key on stepwell.instances (concurrency_key)
  where status = 'executing' and concurrency_key is not null;
-- The line behind a busy key.
create index instances_behind_key on stepwell.instances (concurrency_key, priority, due_at, id)
  where status = 'runnable' and hold = 'key';
-- What no worker can run, by what it needs.
create index instances_unrunnable on stepwell.instances (hold, machine, version)
  where status = 'runnable' and hold in ('version', 'unfit');
-- One live instance per key; the address of a key.
create unique index instances_guard on stepwell.instances (tenant, guard)
  where guard is not null;
-- The newest row that carried a key.
create index instances_key on stepwell.instances (tenant, key, id)
  where key is not null;
create index instances_parent on stepwell.instances (parent_id, parent_round, child_index)
  where parent_id is not null;
create index instances_deadline on stepwell.instances (deadline)
  where deadline is not null;
-- What has ended, by machine: each has its own retention.
create index instances_finished on stepwell.instances (machine, finished_at, id)
  where status in ('done', 'failed', 'cancelled');


-- What is wide: written only on the RETURNING of a guarded update of the hot row, hence no foreign key to pay for.
create table stepwell.instance_data (
  id      bigint primary key,
  state   jsonb not null,
  result  jsonb,
  error   jsonb                                      -- {type, message, traceback}
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_cost_delay = 0);


-- What can be started: written by migrate and by starting workers.
create table stepwell.machines (
  name        text collate "C" not null,
  version     integer not null,
  initial     text not null,
  queue       text not null,
  steps       text[] not null,
  active      boolean not null,                      -- the version that a start without a version takes
  updated_at  timestamptz not null default pg_catalog.now(),
  primary key (name, version)
);
create unique index machines_active on stepwell.machines (name) where active;


-- One row per running worker; the heartbeat writes here and nowhere else. Ids are never used again.
create table stepwell.workers (
  id            bigint generated always as identity primary key,
  host          text not null,
  boot          text not null,                       -- boot and pid namespace: where a pid means something
  pid           integer not null,
  process       text not null,                       -- start of the process: tells a pid from its next owner
  release       text not null,
  queues        jsonb not null,
  machines      text[] not null,                     -- name@version
  started_at    timestamptz not null default pg_catalog.now(),
  beat_at       timestamptz not null default pg_catalog.now(),
  lease_until   timestamptz not null,
  has_left      boolean not null default false,      -- drained and gone: what it left did not crash
  steady_since  timestamptz not null default pg_catalog.now(),  -- the lease is unbroken since
  begun_at      timestamptz not null default '-infinity',       -- claims up to here were begun …
  waiting       bigint[] not null default '{}',                 -- … but these
  running       integer not null default 0
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
