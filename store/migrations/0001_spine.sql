-- The tables of a night, from raw records to promotions. Only the extension `vector` is used.
-- Bodies that are rendered into prompts or shown as they were are `json`, which keeps the order of keys; `jsonb` would
-- sort them. `storage external` leaves out compression, which costs more time than the disk is worth here.

create extension if not exists vector;

create table night (
    night text primary key,
    agent text not null,
    status text not null check (status in ('running', 'done', 'failed')),
    champion_version text,
    challenger_version text,
    summary jsonb not null default '{}',
    started_at timestamptz not null,
    finished_at timestamptz
);

create table ledger (
    key text primary key,
    night text not null,
    stage text not null,
    status text not null check (status in ('running', 'done', 'failed')),
    output jsonb,
    attempts int not null,
    owner text not null,
    heartbeat_at timestamptz not null,
    started_at timestamptz not null,
    finished_at timestamptz,
    seconds double precision,
    cause text
);
create index on ledger (night, started_at);

create table log_file (
    uri text primary key,
    agent text not null,
    format text not null,
    "offset" bigint not null,
    size bigint not null,
    num_lines bigint not null,
    fingerprint text not null,
    read_at timestamptz not null
);

create table raw_record (
    id text primary key,
    agent text not null,
    format text not null,
    conversation_id text not null,
    uri text not null,
    start_byte bigint not null,
    end_byte bigint not null,
    line bigint,
    payload json not null,
    marks text[] not null
);
alter table raw_record alter column payload set storage external;
-- A hash index takes identifiers of any length; logs are untrusted.
create index on raw_record using hash (conversation_id);

create table quarantine (
    key text primary key,
    agent text not null,
    night text not null,
    uri text not null,
    line bigint,
    start_byte bigint not null,
    end_byte bigint not null,
    reason text not null,
    excerpt text not null
);
create index on quarantine (night, agent);

create table trajectory (
    id text primary key,
    agent text not null,
    kind text not null check (kind in ('production', 'rollout', 'evaluation')),
    night text not null,
    changed_night text not null,
    revision int not null default 1,
    digest text not null,
    outcome boolean,
    stop_reason text,
    num_turns int not null,
    started_at timestamptz,
    split text,
    task_id text,
    conversation_id text,
    body json not null,
    token_file text,
    token_row int
);
alter table trajectory alter column body set storage external;
create index on trajectory (night, kind, id);
create index on trajectory (changed_night, kind, id) where changed_night <> night;
create index on trajectory (agent, night desc, id);
create index on trajectory using hash (task_id);
create index on trajectory using hash (conversation_id);

create table failure_case (
    id text primary key,
    agent text not null,
    night text not null,
    trajectory_id text not null,
    found jsonb not null,                   -- as the miner found it
    decided jsonb not null default '{}',    -- what people decided; wins over `found`
    version int not null default 0,         -- number of decisions
    signature text not null generated always as (found ->> 'signature') stored,
    kind text not null generated always as (split_part(found ->> 'signature', '|', 1)) stored,
    fault text not null generated always as (coalesce(decided ->> 'fault', found ->> 'fault')) stored,
    mode_id text generated always as (coalesce(decided ->> 'mode_id', found ->> 'mode_id')) stored,
    verdict text generated always as (decided ->> 'verdict') stored
);
create index on failure_case (agent, night desc, id);
create index on failure_case (night, id);
create index on failure_case (mode_id, id);
create index on failure_case using hash (trajectory_id);
create index on failure_case (agent, id) where verdict is null;

create table case_review (
    case_id text not null references failure_case,
    version int not null,
    actor text not null,
    decided_at timestamptz not null,
    change jsonb not null,
    decided jsonb not null,                 -- all decisions so far, this one included
    primary key (case_id, version)
);
create index on case_review (decided_at);

create table failure_mode (
    id text primary key,
    agent text not null,
    found_name text not null,
    given_name text,                        -- a person's name for it; wins over `found_name`
    version int not null default 0,         -- number of renamings
    renamed_by text,
    renamed_at timestamptz,
    description text not null,
    signature text not null,
    status text not null,
    lineage jsonb not null,
    embedding vector(384)
);
create index on failure_mode (agent);

create table failure_mode_night (
    mode_id text not null references failure_mode,
    night text not null,
    num_cases int not null,
    primary key (mode_id, night)
);
create index on failure_mode_night (night);

create table strategy (
    id text primary key,
    agent text not null,
    night text not null,
    parent_id text,
    stage text not null,
    status text not null,
    source text not null,
    motivating_cases text[] not null,
    scores jsonb,
    lineage jsonb not null,
    sequence bigint generated always as identity
);
create index on strategy (agent, sequence desc);

create table bundle (
    id text primary key,
    agent text not null,
    night text not null,
    strategy_id text not null,
    rl jsonb not null,
    memory_trajectories text[] not null,
    lineage jsonb not null,
    num_kept int not null,
    num_dropped int not null
);
create index on bundle (agent, night desc);

create table bundle_item (
    bundle_id text not null references bundle,
    kept boolean not null,
    position int not null,
    kind text,
    trajectory_id text not null,
    reason text,
    example json,
    primary key (bundle_id, kept, position)
);
create index on bundle_item using hash (trajectory_id);

create table task (
    id text primary key,
    environment text not null,
    split text not null,
    night text not null,
    body json not null,
    solver_stats jsonb
);
create index on task (environment, split, id);
create index on task (night);

create table reference_solution (
    task_id text primary key references task,
    actions json not null
);

create table memory_entry (
    id text not null,
    version int not null,
    scope text not null,
    digest text not null,
    kind text not null,
    cue text not null,
    content text not null,
    provenance text[] not null,
    lineage jsonb not null,
    uses int not null,
    successes int not null,
    words tsvector not null generated always as (to_tsvector('english', left(cue || ' ' || content, 100000))) stored,
    primary key (id, version)
);

create index on memory_entry using gin (words);

-- Apart from the texts and in the row itself: the exact scan reads them all.
create table memory_vector (
    id text not null,
    version int not null,
    embedding vector(384) not null,
    primary key (id, version),
    foreign key (id, version) references memory_entry
);
alter table memory_vector alter column embedding set storage plain;

create table memory_revision (
    scope text not null,
    revision int not null,
    parent int,
    key text not null,
    restores int,
    actor text not null,
    reason text not null,
    made_at timestamptz not null,
    primary key (scope, revision),
    unique (scope, key)
);

-- An entry version belongs to the revisions since .. until - 1; a null `until` means that it still does.
create table memory_live (
    scope text not null,
    entry_id text not null,
    version int not null,
    since int not null,
    until int,
    primary key (scope, entry_id, since),
    foreign key (entry_id, version) references memory_entry
);
create unique index memory_live_head on memory_live (scope, entry_id) where until is null;
create index on memory_live (scope, since, until);

create table memory_use (
    trajectory_id text not null,
    entry_id text not null,
    version int not null,
    succeeded boolean not null,
    primary key (trajectory_id, entry_id),
    foreign key (entry_id, version) references memory_entry
);
create index on memory_use (entry_id, version);

create table report (
    id text primary key,
    agent text not null,
    night text not null,
    champion text not null,
    challenger text not null,
    body jsonb not null,
    decision jsonb,
    sequence bigint generated always as identity
);
create index on report (agent, sequence desc);
create index on report (night);

create table promotion (
    id bigint primary key generated always as identity,
    agent text not null,
    action text not null check (action in ('promote', 'rollback')),
    from_version text,
    to_version text,
    actor text not null,
    reason text not null,
    requested_at timestamptz not null,
    status text not null default 'requested' check (status in ('requested', 'done', 'refused')),
    resolved_at timestamptz,
    outcome text
);
create unique index promotion_open on promotion (agent) where status = 'requested';
create index on promotion (agent, id desc);
