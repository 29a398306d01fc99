"""Two hosts made of network namespaces, with a link between them, for root."""

import os
import subprocess


def _ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, capture_output=True).returncode == 0


class Hosts:
    """The hosts of one run. `number` tells the runs of a soak apart."""

    def __init__(self, directory, number):
        self.names = [f"soak-{os.getpid()}-{number}{side}" for side in "ab"]
        self.devices = [f"s{os.getpid() % 10000}x{number % 1000}{side}" for side in "ab"]
        self.address = f"10.{78 + number % 100}.{number // 100 % 250}."
        self.hostfile = os.path.join(directory, "hosts")
        self.ssh = os.path.join(directory, "ssh")

    def make(self, slots):
        """Returns whether this machine lets us."""
        try:
            for name in self.names:
                _ip("netns", "add", name)
                _ip("-n", name, "link", "set", "lo", "up")
            a, b = self.names
            _ip("link", "add", self.devices[0], "netns", a, "type", "veth", "peer", "name",
                self.devices[1], "netns", b)
            for i, name in enumerate(self.names):
                _ip("-n", name, "addr", "add", f"{self.address}{i + 1}/24", "dev", self.devices[i])
                _ip("-n", name, "link", "set", self.devices[i], "up")
        except (OSError, subprocess.CalledProcessError):
            self.remove()
            return False
        with open(self.hostfile, "w", encoding="utf-8") as file:
            file.write("".join(f"{name} slots={slots}\n" for name in self.names))
        with open(self.ssh, "w", encoding="utf-8") as file:
            # ssh ends with 255 when its host is lost; setsid with the number of a signal.
            file.write('#!/bin/sh\nSOAK_CLOCK="${SOAK_CLOCK:+$SOAK_CLOCK.$1}"\nsetsid --wait ip netns exec "$1" sh -c "$2"\ncode=$?\n'
                       '[ $code != 9 ] || exit 255\nexit $code\n')
        os.chmod(self.ssh, 0o755)
        return True

    def launcher(self, launch, port, in_process):
        """The command that starts a program on the hosts, without the program. Where the ranks that
        are left are to go on, it runs on the first host, since it serves their store."""
        command = [launch, f"--hostfile={self.hostfile}", f"--ssh={self.ssh}",
                   f"--master_addr={self.address}1", f"--master_port={port}", "--restarts=1000000"]
        if in_process:
            command = ["ip", "netns", "exec", self.names[0], *command, "--in_process_recovery",
                       "--replacements=1000000"]
        return [*command, "--"]

    def set_link(self, up):
        _ip("-n", self.names[0], "link", "set", self.devices[0], "up" if up else "down", check=False)

    def slow_link(self, *shape):
        """Delays, loses or slows what a host sends, as tc's netem says; without words no more."""
        for i, name in enumerate(self.names):
            tc = ["tc", "-n", name, "qdisc", "replace" if shape else "del", "dev", self.devices[i],
                  "root"]
            done = subprocess.run(tc + (["netem", *shape] if shape else []), capture_output=True)
            if shape and done.returncode != 0:
                return False
        return True

    def pids(self, which):
        listed = subprocess.run(["ip", "netns", "pids", self.names[which]], capture_output=True)
        return [int(word) for word in listed.stdout.split()]

    def remove(self):
        for name in self.names:
            _ip("netns", "del", name, check=False)
