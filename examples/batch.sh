#!/bin/sh
# A file of requests in OpenAI's batch format, answered by a server: sh examples/batch.sh [URL]
# Without --url, `pagewire run-batch MODEL` runs an engine of its own.
set -eu
url="${1:-http://127.0.0.1:8000}"
answers="$(mktemp)"
trap 'rm "$answers"' EXIT
status=0 # of the command: 1 if a request failed, whose line says why
pagewire run-batch --input-file "$(dirname "$0")/batch.jsonl" --output-file "$answers" --overwrite --url "$url" || status=$?
cut -c 1-300 "$answers"
exit "$status"
