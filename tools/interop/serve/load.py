"""Asks a server of texts by many clients at once, and tells how long the answers took.

  load.py ADDRESS PROCESS [--clients=64] [--seconds=300] [--max_tokens=16]

PROCESS is the server's id, whose memory and threads are compared before and after. Some of the clients read streams, and
some go away in the middle of one. Ends with status 1 if an answer was wrong, or if something of a request was left.
"""

import argparse
import http.client
import json
import sys
import threading
import time
import urllib.parse


class Load:
    """What the clients have seen."""

    def __init__(self, address, process, clients, seconds, max_tokens):
        self.address, self.process = urllib.parse.urlparse(address).netloc, process
        self.clients, self.max_tokens = clients, max_tokens
        self.end = time.time() + seconds
        self.lock = threading.Lock()
        self.times, self.first_times, self.errors, self.tokens, self.left = [], [], [], 0, 0

    def post(self, connection, body):
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise ValueError(f"status {answer.status}: {answer.read()!r}")
        return answer

    def ask(self, connection, kind, number):
        """Asks once. Kinds: a whole answer, a stream, a stream that is left after its first piece."""
        body = {"prompt": f"{number} apes", "max_tokens": self.max_tokens, "ignore_eos": True, "stream": kind != "whole",
                "seed": number}
        start, first = time.time(), None
        answer = self.post(connection, body)
        if kind == "whole":
            count = json.loads(answer.read())["usage"]["completion_tokens"]
            if count != self.max_tokens:
                raise ValueError(f"{count} tokens")
        else:
            while True:
                line = answer.readline()
                if not line:
                    raise ValueError("the stream has no end")
                first = first or time.time() - start
                if b'"error"' in line:
                    raise ValueError(line)
                if kind == "left" and line.startswith(b"data: {"):
                    connection.close()
                    break
                if line.startswith(b"data: [DONE]"):
                    answer.read()
                    break
        with self.lock:
            if kind == "left":
                self.left += 1
                return
            self.times.append(time.time() - start)
            if first:
                self.first_times.append(first)
            self.tokens += self.max_tokens

    def client(self, number):
        connection = http.client.HTTPConnection(self.address, timeout=120)
        for i in range(1000000):
            if time.time() > self.end:
                break
            try:
                self.ask(connection, ("whole", "stream", "whole", "left")[(number + i) % 4], number)
            except (OSError, ValueError, http.client.HTTPException) as error:
                with self.lock:
                    self.errors.append(repr(error))
                connection.close()
        connection.close()

    def state(self):
        """The server's threads and its memory in MiB, and the texts that it works on."""
        with open(f"/proc/{self.process}/status") as file:
            values = dict(line.rstrip("\n").split(":", 1) for line in file)
        connection = http.client.HTTPConnection(self.address, timeout=120)
        connection.request("GET", "/metrics")
        metrics = dict(line.rsplit(" ", 1) for line in connection.getresponse().read().decode().splitlines() if line[0] != "#")
        connection.close()
        texts = sum(int(metrics[f"megatron_serve_{kind}_requests"]) for kind in ("running", "waiting"))
        return int(values["Threads"]), int(values["VmRSS"].split()[0]) / 1024, texts

    def run(self):
        """Returns whether all went well."""
        before, start = self.state(), time.time()
        threads = [threading.Thread(target=self.client, args=(i,)) for i in range(self.clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.time() - start
        # Connections that have ended are noticed within a second.
        deadline = time.time() + 60
        while (after := self.state())[2] > 0 or after[0] > before[0] + 1:
            if time.time() > deadline:
                break
            time.sleep(0.1)
        for name, values in (("an answer", self.times), ("the first piece of a stream", self.first_times)):
            values.sort()
            if values:
                parts = ", ".join(f"{percent} % {values[min(len(values) * percent // 100, len(values) - 1)]:.3f}" for percent in (50, 90, 99))
                print(f"seconds to {name}: {parts}, all {values[-1]:.3f}")
        print(f"{self.clients} clients, {seconds:.0f} s: {len(self.times)} answers, {self.left} streams left, "
              f"{self.tokens / seconds:.0f} tokens/s, {len(self.errors)} errors {self.errors[:3] or ''}")
        print(f"threads {before[0]} and {after[0]}, MiB {before[1]:.0f} and {after[1]:.0f}, texts left over {after[2]}", flush=True)
        return len(self.times) > 0 and not self.errors and after[2] == 0 and after[0] <= before[0] + 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("process", type=int)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--max_tokens", type=int, default=16)
    given = parser.parse_args()
    sys.exit(not Load(given.address, given.process, given.clients, given.seconds, given.max_tokens).run())
