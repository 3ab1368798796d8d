#!/usr/bin/env bash
# A private PostgreSQL in a folder: for tests, and for a team on one machine that has no database server.
#
#   deploy/postgres.sh start FOLDER [PORT]   the first time, creates the cluster with the user `mlflow`; the password is
#                                            $PGPASSWORD, or generated into FOLDER/password; prints the URL
#   deploy/postgres.sh url FOLDER            prints the URL of the database `mlflow`, including the password
#   deploy/postgres.sh stop FOLDER           stops it; the folder is kept
#
# It listens on 127.0.0.1 only. PostgreSQL refuses to run as root: in that case the user $PROFTRACK_DB_USER (default
# `postgres` if that user exists, otherwise `nobody`) runs it and owns FOLDER.
# Debian and Ubuntu: apt-get install postgresql
set -euo pipefail

command=${1:-} folder=${2:-} port=${3:-}
if [[ ! $command =~ ^(start|stop|url)$ || -z $folder ]]; then
  echo "usage: $0 start FOLDER [PORT] | url FOLDER | stop FOLDER" >&2
  exit 2
fi
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

initdb=$(command -v initdb || ls -1 /usr/lib/postgresql/*/bin/initdb 2>/dev/null | sort -V | tail -1 || true)
bin=$(dirname "$(readlink -f "$initdb")")
if [[ ! -x $bin/initdb ]]; then
  echo "$0: no PostgreSQL server here (initdb not found); install the package postgresql" >&2
  exit 1
fi

if [[ $(id -u) == 0 ]]; then
  user=${PROFTRACK_DB_USER:-$(id -un postgres 2>/dev/null || echo nobody)}
  as_user() { (cd / && setpriv --reuid "$user" --regid "$(id -g "$user")" --clear-groups -- "$@"); }
else
  as_user() { "$@"; }
fi

# Percent-encoded: a generated password has only letters and digits, a given one may contain anything.
encoded() { local LC_ALL=C text=$1 out='' i char
  for ((i = 0; i < ${#text}; i++)); do
    char=${text:i:1}
    case $char in [A-Za-z0-9._~-]) out+=$char ;; *) printf -v char '%%%02X' "'$char"; out+=$char ;; esac
  done
  printf '%s' "$out"
}
url() { echo "postgresql+psycopg://mlflow:$(encoded "$(cat "$folder/password")")@127.0.0.1:$(cat "$folder/port")/mlflow"; }

create() {
  umask 077
  printf '%s' "${PGPASSWORD:-$(head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \n')}" > "$folder/password"
  [[ $(id -u) == 0 ]] && chown -R "$user" "$folder"
  as_user "$bin/initdb" --pgdata "$folder/data" --username mlflow --pwfile "$folder/password" --auth scram-sha-256 \
    --encoding UTF8 --locale C.UTF-8 > "$folder/initdb.log"
  # Use TCP on loopback: with sockets below /tmp or /run two clusters would collide, and socket paths must be short.
  printf '%s\n' "listen_addresses = '127.0.0.1'" "unix_socket_directories = ''" "max_connections = 200" \
    >> "$folder/data/postgresql.conf"
}

case $command in
  url) url ;;
  stop) as_user "$bin/pg_ctl" stop --pgdata "$folder/data" --mode fast --wait --timeout 60 --silent ;;
  start)
    new=false
    [[ -f $folder/data/PG_VERSION ]] || { create; new=true; }
    [[ -z $port ]] || echo "$port" > "$folder/port"
    [[ -f $folder/port ]] || echo 5432 > "$folder/port"
    if as_user "$bin/pg_ctl" status --pgdata "$folder/data" > /dev/null 2>&1; then
      url
      exit
    fi
    as_user "$bin/pg_ctl" start --pgdata "$folder/data" --wait --timeout 60 --silent --log "$folder/data/server.log" \
      --options "-p $(cat "$folder/port")" || { tail -5 "$folder/data/server.log" >&2; exit 1; }
    if $new; then
      for database in mlflow mlflow_auth; do
        PGPASSWORD=$(cat "$folder/password") "$bin/createdb" --host 127.0.0.1 --port "$(cat "$folder/port")" \
          --username mlflow "$database"
      done
    fi
    url
    ;;
esac
