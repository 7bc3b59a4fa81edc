#!/bin/sh
# The service takes the place of this shell, so that it gets the stop signal itself. Arguments go to `subagentd serve`;
# another command of subagentd is run with `--entrypoint subagentd`.
set -eu

if ! mkdir -p "$SUBAGENTD_WORKSPACE"; then
    echo "cannot make the workspace $SUBAGENTD_WORKSPACE: give the directory that is mounted there to user $(id -u)" \
        "(chown), use a named volume, or set SUBAGENTD_WORKSPACE to a directory that is there" >&2
    exit 2
fi
exec subagentd serve "$@"
