-- One row a queue, 'orchestrator' and 'worker'. Reads both queues whole.
-- ready: visible, and nobody holds it. scheduled: visible later (timers, delayed retries). leased: held.
-- oldest_ready_at: since when the oldest one waits; latency: how long that is. next_at: when the next scheduled one is due.
-- retried: those delivered before without success; max_attempts: the most often that happened to one.
create or replace view queue_health as
with item as (
    select 'orchestrator' as queue,
           q.visible_at as available_at,
           coalesce(m.lease is not null
                    and m.available_at > statement_timestamp()
                    and q.id = any (m.claimed_ids), false) as is_leased,
           q.attempt_count
      from orchestrator_queue as q
      left join mailboxes as m on m.instance_id = q.instance_id
    union all
    -- A start that was handed over, in its mailbox.
    select 'orchestrator', m.claimed_until, m.available_at > statement_timestamp(), cardinality(m.claimed_ids) - 1
      from mailboxes as m
     where m.start_item is not null
       and m.available_at < 'infinity'
    union all
    -- The delivery under way is counted there.
    select 'worker', w.available_at, l.is_leased, w.attempt_count - l.is_leased::integer
      from worker_queue as w
     cross join lateral (select w.lease is not null and w.available_at > statement_timestamp() as is_leased) as l
)
select k.queue,
       count(i.queue) as total,
       count(*) filter (where not i.is_leased and i.available_at <= statement_timestamp()) as ready,
       count(*) filter (where not i.is_leased and i.available_at > statement_timestamp()) as scheduled,
       count(*) filter (where i.is_leased) as leased,
       min(i.available_at) filter (where not i.is_leased and i.available_at <= statement_timestamp()) as oldest_ready_at,
       statement_timestamp()
           - min(i.available_at) filter (where not i.is_leased and i.available_at <= statement_timestamp()) as latency,
       min(i.available_at) filter (where not i.is_leased and i.available_at > statement_timestamp()) as next_at,
       count(*) filter (where i.attempt_count > 0) as retried,
       coalesce(max(i.attempt_count), 0) as max_attempts
  from (values ('orchestrator'), ('worker')) as k (queue)
  left join item as i on i.queue = k.queue
 group by k.queue;
