#!/bin/sh
# Create the namespace and the search attributes that refold lists tasks by.
#
# Does nothing where they exist. TEMPORAL_ADDRESS and TEMPORAL_NAMESPACE say where;
# REFOLD_RETENTION is how long the history of a closed task is kept.
set -eu

namespace=${TEMPORAL_NAMESPACE:-default}

# until_ok SECONDS COMMAND...: a namespace is known to every part of the server only after a while.
until_ok() {
  left=$1
  shift
  until "$@"; do
    left=$((left - 1))
    if [ "$left" -le 0 ]; then
      echo "gave up waiting for: $*" >&2
      return 1
    fi
    sleep 1
  done
}

serving() { temporal operator cluster health >/dev/null 2>&1; }
attributes() { temporal operator search-attribute list --namespace "$namespace" 2>/dev/null; }
listed() { attributes | grep -Eq "^ *$1 +$2 *\$"; }

until_ok 60 serving
if ! temporal operator namespace describe --namespace "$namespace" >/dev/null 2>&1; then
  temporal operator namespace create --namespace "$namespace" --retention "${REFOLD_RETENTION:-72h}"
fi
until_ok 60 attributes >/dev/null

# One command each: of several names in one command, the server (1.32.0) adds only the first.
while read -r name type; do
  listed "$name" "$type" && continue
  temporal operator search-attribute create --namespace "$namespace" --name "$name" --type "$type"
  until_ok 60 listed "$name" "$type"
done <<END
RefoldState Keyword
RefoldStateAt Datetime
RefoldStatus Keyword
RefoldStatusAt Datetime
RefoldSkill Keyword
RefoldOwner Keyword
RefoldContext Keyword
RefoldOrigin Keyword
END

echo "namespace $namespace is ready"
