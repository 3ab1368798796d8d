#!/usr/bin/env bash
# Backs up and restores a team's store: both databases and the artifacts, while the server runs.
#
#   deploy/backup.sh save FOLDER       into FOLDER/<time>/: mlflow.dump, mlflow_auth.dump, artifacts/
#   deploy/backup.sh restore FOLDER    FOLDER/<time>/ into empty databases and an empty artifact folder; stop the server
#
#   DATABASE_URL    as for server.sh; AUTH_DATABASE_URL likewise
#   ARTIFACTS       the folder of the artifacts; leave it unset for a bucket, which is backed up by its own means
#
# The databases are saved first: a run is FINISHED only once its artifacts are stored, so every FINISHED run of the dump
# has all its files in the copy. A run that was being logged meanwhile is completed by `proftrack sync` on the machine
# that measured it.
set -euo pipefail

command=${1:-} folder=${2:-}
if [[ ! $command =~ ^(save|restore)$ || -z $folder ]]; then
  echo "usage: $0 save FOLDER | restore FOLDER/<time>" >&2
  exit 2
fi
: "${DATABASE_URL:?such as postgresql://mlflow:PASSWORD@127.0.0.1:5432/mlflow}"
auth_url=${AUTH_DATABASE_URL:-${DATABASE_URL%/*}/mlflow_auth}

# libpq knows no SQLAlchemy drivers. Passwords are passed in the environment: arguments are visible to every user.
parts() {
  local url=${1#*://} user host
  user=${url%%@*} host=${url#*@}
  PGPASSWORD=$(printf '%b' "$(sed 's/%/\\x/g' <<< "${user#*:}")")
  export PGPASSWORD PGUSER=${user%%:*} PGDATABASE=${host##*/}
  host=${host%%/*}
  export PGHOST=${host%%:*} PGPORT=$([[ $host == *:* ]] && echo "${host##*:}" || echo 5432)
}

case $command in
  save)
    umask 077
    target=$folder/$(date -u +%Y%m%dT%H%M%SZ)
    mkdir -p "$target.part"
    for url in "$DATABASE_URL" "$auth_url"; do
      parts "$url"
      pg_dump --format custom --file "$target.part/$([[ $url == "$auth_url" ]] && echo mlflow_auth || echo mlflow).dump"
    done
    [[ -z ${ARTIFACTS:-} || ! -d $ARTIFACTS ]] || cp -a "$ARTIFACTS" "$target.part/artifacts"
    mv "$target.part" "$target"
    echo "$target"
    ;;
  restore)
    for url in "$DATABASE_URL" "$auth_url"; do
      parts "$url"
      dump=$folder/$([[ $url == "$auth_url" ]] && echo mlflow_auth || echo mlflow).dump
      pg_restore --no-owner --exit-on-error --single-transaction --dbname "$PGDATABASE" "$dump"
    done
    if [[ -n ${ARTIFACTS:-} && -d $folder/artifacts ]]; then
      mkdir -p "$ARTIFACTS"
      cp -a "$folder/artifacts/." "$ARTIFACTS"
    fi
    ;;
esac
