-- A use counts from the next revision on, so what a revision recalls never changes.
alter table memory_use add column revision bigint not null default 0;
