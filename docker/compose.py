"""Writes compose.yaml: `python3 docker/compose.py --sites 20 > compose.yaml`. Needs Python alone."""

from __future__ import annotations

import argparse

_HEAD = """\
# A whole federation in containers, for demonstrations: a server and {count} sites, each with a share of the run's data.
# Written by `python3 docker/compose.py --sites {count}`. How to use it: docs/deployment.md, section Containers.

x-coterie: &coterie
  image: ${{COTERIE_IMAGE:-coterie}}
  user: ${{COTERIE_USER:-1000:1000}}
  init: true
  read_only: true
  tmpfs: [/tmp]
  cap_drop: [ALL]
  security_opt: ["no-new-privileges:true"]
  stop_grace_period: 30s
  logging: {{driver: json-file, options: {{max-size: 10m, max-file: "2"}}}}

x-site: &site
  <<: *coterie
  restart: unless-stopped
  networks: [fleet]
  depends_on: {{server: {{condition: service_healthy}}}}
  # All on one machine: one thread each, and when they all want the processor, the server comes first.
  environment: {{OMP_NUM_THREADS: "1"}}
  cpu_shares: 64
  healthcheck: {{test: [CMD, python, -m, cli.deployment.health], interval: 60s, timeout: 30s, start_period: 120s}}

services:
  # Once: certificates and keys. Only here are all volumes together; a site gets its own kit and no other.
  provision:
    <<: *coterie
    build: {{context: ., dockerfile: docker/Dockerfile}}
    user: "0:0"
    cap_add: [CHOWN, DAC_OVERRIDE, FOWNER]
    network_mode: none
    healthcheck: {{disable: true}}
    environment: {{COTERIE_USER: "${{COTERIE_USER:-1000:1000}}"}}
    entrypoint: [sh, docker/provision.sh]
    command: ["{names}"]
    volumes:
      - authority:/fed
      - server:/fed/server
      - operator:/fed/operator
      - ${{COTERIE_RUNS:-./runs}}:/fed/runs
{kits}
  server:
    <<: *coterie
    restart: unless-stopped
    networks: [fleet]
    depends_on: {{provision: {{condition: service_completed_successfully}}}}
    healthcheck:
      {{test: [CMD, python, -m, cli.deployment.health], interval: 5s, timeout: 30s, retries: 6, start_period: 180s}}
    command: [server, /fed/server/server.toml]
    volumes:
      - server:/fed/server
      - ${{COTERIE_RUNS:-./runs}}:/fed/runs

  # Shares the server's network: the operator's port is on its loopback, where no site reaches it.
  submit:
    <<: *coterie
    profiles: [submit]
    network_mode: service:server
    depends_on: {{server: {{condition: service_healthy}}}}
    healthcheck: {{disable: true}}
    working_dir: /
    # So many sites work at once: on one machine more of them would not be faster, but need more memory.
    entrypoint: [python, -m, cli.main, run, --on, /fed, {settings}]
    command: [configs/demo.toml]
    volumes:
      - operator:/fed/operator
      - ${{COTERIE_RUNS:-./runs}}:/fed/runs
      - ./configs:/configs:ro

"""

_SITE = """\
  {name}:
    <<: *site
    command: [site, /kit/site.toml, {settings}]
    volumes: ["{name}:/kit"]
"""

_TAIL = """\

# No way out, and none in: nothing of the federation is seen from other networks.
networks:
  fleet: {{internal: true}}

volumes:
  authority:
  server:
  operator:
{volumes}"""


def site_names(count: int) -> list[str]:
    """Return site-01, site-02, …"""
    return [f"site-{number:02d}" for number in range(1, count + 1)]


def compose(count: int) -> str:
    """Return the compose file of a federation of `count` sites."""
    names = site_names(count)
    kits = "".join(f"      - {name}:/fed/sites/{name}\n" for name in names)
    sites = ""
    for index, name in enumerate(names):
        changes = (f"partition={index}", f"partitions={count}", "cache=/kit/cache", "health=127.0.0.1:9095")
        sites += _SITE.format(name=name, settings=", ".join(f"--set, {change}" for change in changes))
    volumes = "".join(f"  {name}:\n" for name in names)
    settings = f'--set, sites={count}, --set, "round.in_flight=${{COTERIE_AT_ONCE:-8}}"'
    head = _HEAD.format(count=count, names=",".join(names), kits=kits, settings=settings)
    return head + sites + _TAIL.format(volumes=volumes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=20, help="number of client containers (default 20)")
    print(compose(parser.parse_args().sites), end="")


if __name__ == "__main__":
    main()
