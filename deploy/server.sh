#!/usr/bin/env bash
# Starts MLflow's server for a team: runs in PostgreSQL, artifacts through the server, users with passwords. The compose
# file runs this same script in its container; the tests run it on loopback.
#
#   DATABASE_URL          postgresql+psycopg://user:password@host:5432/mlflow
#   AUTH_DATABASE_URL     database of the users and their permissions (default: the same URL, database mlflow_auth)
#   ARTIFACTS             where the server puts artifacts: a folder, s3://bucket/path, gs://..., wasbs://...
#   ADMIN_PASSWORD        of the user `admin`, created at the first start (at least 12 characters); later starts ignore it
#   SECRET_KEY            signs the UI's forms: any long random text, the same for every start
#   HOST, PORT, WORKERS   default 127.0.0.1, 5000, 4
#   ALLOWED_HOSTS         names under which browsers and clients reach the server, such as mlflow.example.org
#   DEFAULT_PERMISSION    what users may do with other users' experiments: READ (default), EDIT, NO_PERMISSIONS
#   STATE                 folder for the generated configuration (default: a temporary one)
set -euo pipefail

need() { [[ -n ${!1:-} ]] || { echo "$0: $1 is not set; $2" >&2; exit 2; }; }
need DATABASE_URL "such as postgresql+psycopg://mlflow:PASSWORD@127.0.0.1:5432/mlflow"
need ARTIFACTS "a folder or s3://bucket/path for the artifacts"
need ADMIN_PASSWORD "the password of the user admin"
need SECRET_KEY "a long random text, the same for every start"
if ((${#ADMIN_PASSWORD} < 12)); then
  echo "$0: ADMIN_PASSWORD has ${#ADMIN_PASSWORD} characters; MLflow requires 12 or more" >&2
  exit 2
fi

state=${STATE:-$(mktemp -d)}
umask 077
mkdir -p "$state"
# configparser interprets %.
auth_url=${AUTH_DATABASE_URL:-${DATABASE_URL%/*}/mlflow_auth}
cat > "$state/basic_auth.ini" <<INI
[mlflow]
default_permission = ${DEFAULT_PERMISSION:-READ}
database_uri = ${auth_url//%/%%}
admin_username = admin
# Password hashing is slow on purpose, so a successful check is cached for a minute. After that minute at the latest, a
# changed password or a deleted user is refused.
auth_cache_ttl_seconds = 60
INI
# Artifacts require a password: because of the umask other accounts of this machine cannot read them without the server.

# In the environment, not as arguments: those are visible to every user of the machine.
export MLFLOW_BACKEND_STORE_URI=$DATABASE_URL
export MLFLOW_AUTH_CONFIG_PATH=$state/basic_auth.ini
export MLFLOW_AUTH_ADMIN_PASSWORD=$ADMIN_PASSWORD
export MLFLOW_FLASK_SERVER_SECRET_KEY=$SECRET_KEY
unset DATABASE_URL AUTH_DATABASE_URL ADMIN_PASSWORD SECRET_KEY MLFLOW_TRACKING_URI
[[ -z ${ALLOWED_HOSTS:-} ]] || export MLFLOW_SERVER_ALLOWED_HOSTS=$ALLOWED_HOSTS

exec "${PYTHON:-python3}" -m mlflow server --app-name basic-auth --host "${HOST:-127.0.0.1}" --port "${PORT:-5000}" \
  --workers "${WORKERS:-4}" --serve-artifacts --artifacts-destination "$ARTIFACTS"
