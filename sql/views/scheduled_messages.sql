-- What is due later: timers and delayed messages, of which instance and when. No payloads.
create or replace view scheduled_messages as
select q.instance_id, q.visible_at as due_at, q.visible_at - statement_timestamp() as due_in
  from orchestrator_queue as q
 where q.visible_at > statement_timestamp();
