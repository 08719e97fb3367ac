# The server of a container for tests. As process 1 this ends the container, when nobody has been connected for two minutes.
docker-entrypoint.sh postgres -c max_connections=300 -c fsync=off -c full_page_writes=off &
server=$!
trap exit INT TERM
clients="select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
idle=0
while kill -0 "$server" 2>/dev/null && [ "$idle" -lt 24 ]; do
  sleep 5
  case $(psql -XAtU postgres -c "$clients" 2>/dev/null) in
    0) idle=$((idle + 1)) ;;
    '') ;; # no answer yet
    *) idle=0 ;;
  esac
done
