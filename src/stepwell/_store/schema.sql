-- The schema `stepwell` as all migrations together leave it, for reading. Generated; tests hold it equal to them:
--   .venv/bin/python -m tests.support.dump_schema > src/stepwell/_store/schema.sql
-- Why things are as they are stands in the migrations.

create schema stepwell;

CREATE OR REPLACE FUNCTION stepwell.now()
 RETURNS timestamp with time zone
 LANGUAGE sql
 STABLE PARALLEL SAFE
RETURN now();

create table stepwell.instance_data (
  id        bigint not null,
  state     jsonb not null,
  result    jsonb,
  error     jsonb,
  operated  jsonb,
  constraint instance_data_pkey PRIMARY KEY (id)
) with (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0);

create table stepwell.instances (
  id                 bigint generated always as identity not null,
  fence              bigint default 0 not null,
  worker_id          bigint,
  parent_id          bigint,
  await_unit_id      bigint,
  due_at             timestamp with time zone not null,
  claimed_at         timestamp with time zone,
  deadline           timestamp with time zone,
  created_at         timestamp with time zone not null,
  updated_at         timestamp with time zone not null,
  finished_at        timestamp with time zone,
  version            integer not null,
  attempt            integer default 0 not null,
  crashes            integer default 0 not null,
  visit              integer default 0 not null,
  round              integer default 0 not null,
  parent_round       integer,
  child_index        integer,
  children_pending   integer default 0 not null,
  weight             integer default 1 not null,
  priority           smallint default 0 not null,
  joined             boolean default false not null,
  watched            boolean default false not null,
  has_inbox          boolean default false not null,
  tenant             text collate "C" default ''::text not null,
  machine            text collate "C" not null,
  step               text collate "C" not null,
  status             text collate "C" default 'runnable'::text not null,
  hold               text collate "C",
  hold_reason        text,
  queue              text collate "C" not null,
  concurrency_key    text collate "C",
  concurrency_limit  text collate "C",
  rate_limit         text collate "C",
  awaits             text[] collate "C",
  key                text collate "C",
  key_scope          text collate "C",
  guard              text collate "C" generated always as (
CASE
    WHEN (key_scope = 'forever'::text) THEN key
    WHEN ((key_scope = 'live'::text) AND (status <> ALL (ARRAY['done'::text, 'failed'::text, 'cancelled'::text]))) THEN key
    ELSE NULL::text
END) stored,
  constraint instances_pkey PRIMARY KEY (id),
  constraint awaiting_signal_has_names CHECK (status <> 'awaiting_signal'::text OR awaits IS NOT NULL),
  constraint children_not_negative CHECK (children_pending >= 0),
  constraint executing_has_worker CHECK ((status = 'executing'::text) = (worker_id IS NOT NULL)),
  constraint finished_has_end CHECK ((status = ANY (ARRAY['done'::text, 'failed'::text, 'cancelled'::text])) = (finished_at IS NOT NULL)),
  constraint hold_known CHECK (hold = ANY (ARRAY['due'::text, 'key'::text, 'limit'::text, 'rate'::text, 'version'::text, 'unfit'::text, 'paused'::text])),
  constraint key_has_scope CHECK ((key IS NULL) = (key_scope IS NULL) AND (key_scope = ANY (ARRAY['live'::text, 'forever'::text]))),
  constraint only_runnable_is_held CHECK (hold IS NULL OR status = 'runnable'::text),
  constraint status_known CHECK (status = ANY (ARRAY['runnable'::text, 'executing'::text, 'awaiting_signal'::text, 'awaiting_children'::text, 'awaiting_external'::text, 'done'::text, 'failed'::text, 'cancelled'::text]))
) with (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0, autovacuum_analyze_scale_factor=0.05);
CREATE INDEX instances_behind_key ON stepwell.instances USING btree (concurrency_key, priority, due_at, id)
  WHERE ((status = 'runnable'::text) AND (hold = 'key'::text));
CREATE INDEX instances_claim ON stepwell.instances USING btree (queue, priority, due_at, id)
  WHERE ((status = 'runnable'::text) AND (hold IS NULL));
CREATE UNIQUE INDEX instances_concurrency_key ON stepwell.instances USING btree (concurrency_key)
  WHERE ((status = 'executing'::text) AND (concurrency_key IS NOT NULL));
CREATE INDEX instances_deadline ON stepwell.instances USING btree (deadline)
  WHERE (deadline IS NOT NULL);
CREATE INDEX instances_due ON stepwell.instances USING btree (due_at)
  WHERE ((status = 'runnable'::text) AND (hold = 'due'::text));
CREATE INDEX instances_executing ON stepwell.instances USING btree (worker_id)
  WHERE (status = 'executing'::text);
CREATE INDEX instances_finished ON stepwell.instances USING btree (machine, finished_at, id)
  WHERE (status = ANY (ARRAY['done'::text, 'failed'::text, 'cancelled'::text]));
CREATE UNIQUE INDEX instances_guard ON stepwell.instances USING btree (tenant, guard)
  WHERE (guard IS NOT NULL);
CREATE INDEX instances_key ON stepwell.instances USING btree (tenant, key, id)
  WHERE (key IS NOT NULL);
CREATE INDEX instances_parent ON stepwell.instances USING btree (parent_id, parent_round, child_index)
  WHERE (parent_id IS NOT NULL);
CREATE INDEX instances_unrunnable ON stepwell.instances USING btree (hold, machine, version)
  WHERE ((status = 'runnable'::text) AND (hold = ANY (ARRAY['version'::text, 'unfit'::text])));

create table stepwell.machines (
  name        text collate "C" not null,
  version     integer not null,
  initial     text not null,
  queue       text not null,
  steps       text[] not null,
  active      boolean not null,
  updated_at  timestamp with time zone default now() not null,
  retention   interval default '1 day'::interval,
  constraint machines_pkey PRIMARY KEY (name, version)
);
CREATE UNIQUE INDEX machines_active ON stepwell.machines USING btree (name)
  WHERE active;

create table stepwell.meta (
  singleton    boolean default true not null,
  version      integer not null,
  migrated_at  timestamp with time zone default now() not null,
  constraint meta_pkey PRIMARY KEY (singleton),
  constraint meta_singleton_check CHECK (singleton)
);

create table stepwell.signals (
  id           bigint generated always as identity not null,
  instance_id  bigint not null,
  sent_at      timestamp with time zone not null,
  consumed     boolean default false not null,
  name         text collate "C" not null,
  dedup_key    text collate "C",
  payload      jsonb,
  constraint signals_pkey PRIMARY KEY (id)
) with (autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0);
CREATE UNIQUE INDEX signals_dedup ON stepwell.signals USING btree (instance_id, dedup_key)
  WHERE (dedup_key IS NOT NULL);
CREATE INDEX signals_inbox ON stepwell.signals USING btree (instance_id, id);

create table stepwell.tombstones (
  tenant       text collate "C" not null,
  key          text collate "C" not null,
  instance_id  bigint not null,
  buried_at    timestamp with time zone not null,
  constraint tombstones_pkey PRIMARY KEY (tenant, key)
);

create table stepwell.workers (
  id            bigint generated always as identity not null,
  host          text not null,
  boot          text not null,
  pid           integer not null,
  process       text not null,
  release       text not null,
  queues        jsonb not null,
  machines      text[] not null,
  started_at    timestamp with time zone default now() not null,
  beat_at       timestamp with time zone default now() not null,
  lease_until   timestamp with time zone not null,
  has_left      boolean default false not null,
  steady_since  timestamp with time zone default now() not null,
  begun_at      timestamp with time zone default '-infinity'::timestamp with time zone not null,
  waiting       bigint[] default '{}'::bigint[] not null,
  running       integer default 0 not null,
  constraint workers_pkey PRIMARY KEY (id)
) with (fillfactor=50, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=200);

insert into stepwell.meta (version) values (2);
