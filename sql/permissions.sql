-- Applied after the functions, under the schema's own search_path: PUBLIC has nothing.
-- CREATE FUNCTION hands EXECUTE to PUBLIC; grants to roles survive CREATE OR REPLACE.
do $$
begin
    execute format('revoke all on schema %I from public', current_schema());
    execute format('revoke all on all tables in schema %I from public', current_schema());
    execute format('revoke all on all sequences in schema %I from public', current_schema());
    execute format('revoke all on all functions in schema %I from public', current_schema());
end
$$;
