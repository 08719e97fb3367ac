-- The history of each instance, event by event: JSON, with inputs and results.
create or replace view instance_events as
select h.instance_id, h.execution_id, h.event_id, h.event_data
  from history as h;
