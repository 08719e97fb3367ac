-- What is deployed here: the last migration, the release of the functions and their digest.
-- The one read of a start when nothing changed.
create or replace function get_deployment()
returns table (migration integer, release text, serves_from text, functions_digest text)
language plpgsql stable
as $$
#variable_conflict use_column
begin
    return query
    select (select max(h.version) from schema_history as h)::integer, d.release, d.serves_from, d.functions_digest
      from deployment as d;
end
$$
security definer
set search_path from current;
