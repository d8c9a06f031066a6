#!/bin/sh
# A file of requests in OpenAI's batch format, answered by a server: sh examples/batch.sh [URL]
# Without --url, `pagewire run-batch MODEL` runs an engine of its own.
set -eu
url="${1:-http://127.0.0.1:8000}"
answers="$(mktemp)"
pagewire run-batch --input-file "$(dirname "$0")/batch.jsonl" --output-file "$answers" --overwrite --url "$url"
cut -c 1-300 "$answers"
rm "$answers"
