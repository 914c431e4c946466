#!/bin/sh
# Makes the federation of compose.yaml, once, and adds sites later: certificates, keys, and a kit in the volume of each site.
# The only program there that runs as root, without any network, to hand every volume to the user of the other containers.
set -eu
sites=$1
owner=$(stat -c %u /fed/runs)
if [ "$owner" = 0 ]; then
    # Made a moment ago by the Docker daemon.
    chown "$COTERIE_USER" /fed/runs
elif [ "$owner" != "${COTERIE_USER%%:*}" ]; then
    echo "The folder for runs belongs to user $owner, but the containers run as ${COTERIE_USER}. Once:" >&2
    echo "    echo COTERIE_USER=$(stat -c %u:%g /fed/runs) >> .env" >&2
    exit 2
fi
python -m cli.main provision /fed --server server:9092 --sites "$sites"
chown -R "$COTERIE_USER" /fed/server /fed/operator /fed/sites
