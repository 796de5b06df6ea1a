#!/usr/bin/env python3
"""Nothing accepted is lost, nothing is answered wrongly, whatever is killed.

    test_faults.py SERVICE STUB_ENGINE TESTS_DIR SCRATCH_DIR [--jobs N] [--seed N]

Four tenants (a service each) send prompts, singly and in pairs, while engines and Q are killed with
SIGKILL, C is emptied and hangs for a while, and events are lost. Four prompts are poison: whatever engine takes one dies of it. At the end
every innocent prompt must have been answered with the right numbers, every poison one with 502, and
the queue must be empty. The numbers are worked out again here (see stub_engine.c), from the clients'
histories alone. Standard library only; exit 77 where there is no redis-server.
"""
import argparse
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

parser = argparse.ArgumentParser()
parser.add_argument("service")
parser.add_argument("engine")
parser.add_argument("tests", type=pathlib.Path)
parser.add_argument("scratch")
parser.add_argument("--jobs", type=int, default=4000)
parser.add_argument("--engine-kills", type=int, default=20)
parser.add_argument("--queue-kills", type=int, default=3)
parser.add_argument("--flushes", type=int, default=3)
parser.add_argument("--event-losses", type=int, default=3)
parser.add_argument("--cache-pauses", type=int, default=1)
parser.add_argument("--evicting-queue", action="store_true", help="a fault of ours: must fail")
parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
args = parser.parse_args()

TENANTS = ["anna", "bert", "cleo", "dora"]
ENGINES = 3
LEASE_MS = 1500
LOST = 'pe_resubmits_total{lost="result"}'
TINY = args.tests.resolve() / "golden/gemma3-tiny"
DIR = pathlib.Path(tempfile.mkdtemp(prefix="pe-faults-", dir="/tmp"))
WEIGHTS = b"stub"
POISON, SLOW = "日", "é"  # byte tokens that no other prompt of this test has
STOP = threading.Event()
random.seed(args.seed)


def fnv(value, data):
    for byte in data:
        value = ((value ^ byte) * 16777619) & 0xFFFFFFFF
    return value


class Process:
    """A program that is started again when it dies, until stop()."""

    def __init__(self, name, argv, env=None):
        self.name, self.argv, self.env = name, [str(a) for a in argv], env
        self.log = open(DIR / f"{name}.log", "ab")
        self.lock = threading.Lock()
        self.kills = 0
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.argv, stdout=self.log, stderr=self.log,
                                        env={**os.environ, **(self.env or {})})

    def kill(self):
        with self.lock:
            self.process.kill()
            self.process.wait()
            self.kills += 1
            self.start()

    def revive(self):
        with self.lock:
            if self.process.poll() is not None and not STOP.is_set():
                self.start()

    def stop(self):
        with self.lock:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()


def redis(name, *settings):
    (DIR / name).mkdir()
    return Process(name, ["redis-server", "--port", "0", "--unixsocket", DIR / f"{name}.sock",
                          "--dir", DIR / name, "--save", "", *settings])


def redis_cli(name, *words):
    return subprocess.run(["redis-cli", "-s", str(DIR / f"{name}.sock"), *words],
                          capture_output=True, text=True).stdout


def wait_for(what, true, seconds=30):
    end = time.time() + seconds
    while not true():
        if time.time() > end:
            raise SystemExit(f"FAILED: {what} not within {seconds} s; logs in {DIR}")
        time.sleep(0.05)


def read_safetensors(data):
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    body = data[8 + length:]
    return {k: (v["shape"], body[slice(*v["data_offsets"])]) for k, v in header.items()}


def check_answer(data, n):
    """None, or what is wrong with an answer of n prompts in float32."""
    tensors = read_safetensors(data)
    for i in range(n):
        shape, states = tensors[f"p{i}.hidden_states"]
        _, ids = tensors[f"p{i}.token_ids"]
        seed = fnv(fnv(2166136261, WEIGHTS), ids)
        numbers = shape[1] * shape[2]
        got = struct.unpack(f"<{shape[0] * numbers}f", states)
        for s in range(shape[0]):
            for k in (0, numbers // 2, numbers - 1):
                want = float((seed + s * 1000003 + k) % 65536)
                if got[s * numbers + k] != want:
                    return f"prompt {i}, state {s}, number {k}: {got[s * numbers + k]}, want {want}"
    return None


class Client(threading.Thread):
    """Sends its requests one after the other; repeats what ends in no answer."""

    def __init__(self, port, requests):
        super().__init__(daemon=True)
        self.port, self.requests = port, requests
        self.answered, self.problems, self.retries = 0, [], 0

    def ask(self, prompts):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=150)
        try:
            connection.request("POST", "/v1/encode", json.dumps(
                {"prompts": prompts, "dtype": "float32", "output": "hidden_states"}),
                {"Content-Type": "application/json", "Prefer": "wait=60"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def run(self):
        for prompts in self.requests:
            poison = any(POISON in p for p in prompts)
            for attempt in range(200):
                try:
                    status, body = self.ask(prompts)
                except (OSError, http.client.HTTPException):
                    status, body = 0, b""
                if status == 202:  # nothing here takes that long: a waiter was forgotten
                    self.problems.append(f"{prompts}: no answer in 60 s")
                if status in (0, 202, 503, 429):  # not answered: the same again joins the job
                    self.retries += 1
                    time.sleep(0.1)
                    continue
                break
            if poison:
                if status != 502:
                    self.problems.append(f"poison {prompts}: {status}, want 502")
            elif status != 200:
                self.problems.append(f"{prompts}: {status} {body[:200]}")
            else:
                wrong = check_answer(body, len(prompts))
                if wrong:
                    self.problems.append(f"{prompts}: {wrong}")
            self.answered += len(prompts)


def metrics(path):
    """The admin page of a program that listens on a unix socket, as {series: number}."""
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(10)
        s.connect(str(path))
        s.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        text = s.makefile("rb").read().decode().partition("\r\n\r\n")[2]
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
            for line in text.splitlines() if line and line[0] != "#"}


def answers(path):
    """A killed engine leaves its socket behind, on which nobody listens."""
    try:
        return bool(metrics(path))
    except OSError:
        return False


def quiet_time(port, engines):
    """Nothing fails now: no result may be missed. Then an engine sleeps through its lease (a zombie):
    another answers, and what the first one says when it wakes is refused."""
    problems = []
    before = metrics(DIR / "anna.admin")
    client = Client(port, [[f"quiet {i}"] for i in range(100)])
    client.run()
    problems += client.problems
    after = metrics(DIR / "anna.admin")
    if after[LOST] != before[LOST]:
        problems.append(f"{after[LOST] - before[LOST]:.0f} jobs were done before their result was there")

    zombie, others = engines[0], engines[1:]
    for other in others:
        other.process.send_signal(signal.SIGSTOP)
    slow = Client(port, [[f"slow {SLOW}"]])
    slow.start()
    wait_for("a job in hand", lambda: metrics(DIR / "e0.admin")["pe_jobs_in_hand"] == 1)
    zombie.process.send_signal(signal.SIGSTOP)
    for other in others:
        other.process.send_signal(signal.SIGCONT)
    slow.join(60)
    problems += slow.problems
    if slow.is_alive():
        problems.append("the zombie's job was not delivered again")
    zombie.process.send_signal(signal.SIGCONT)
    end = time.time() + 10
    while metrics(DIR / "e0.admin")['pe_jobs_total{outcome="stale"}'] == 0 and time.time() < end:
        time.sleep(0.1)
    if metrics(DIR / "e0.admin")['pe_jobs_total{outcome="stale"}'] != 1:
        problems.append("the zombie's late word was not refused")
    return problems


def queue_base():
    names = redis_cli("queue", "keys", "pe:{*}:wk").split()
    return names[0].rsplit(":", 1)[0] if names else None


def main():
    policy = "allkeys-lru" if args.evicting_queue else "noeviction"
    queue = redis("queue", "--appendonly", "yes", "--appendfsync", "always", "--maxmemory", "64mb",
                  "--maxmemory-policy", policy)
    cache = redis("cache", "--appendonly", "no", "--maxmemory", "256mb", "--maxmemory-policy",
                  "allkeys-lfu")
    for name in ("queue", "cache"):
        wait_for(f"redis {name}", lambda n=name: "PONG" in redis_cli(n, "ping"))
    urls = [f"--redis-queue=unix:{DIR}/queue.sock", f"--redis-cache=unix:{DIR}/cache.sock"]
    poison, slow = json.loads(subprocess.run(
        [pathlib.Path(args.service).parent / "prompt-encoder", "tokenize", "-m", TINY, POISON, SLOW],
        capture_output=True, check=True).stdout)
    env = {"STUB_POISON": str(poison[-1]), "STUB_SLOW": str(slow[-1]), "STUB_MS": "2"}
    engines = [Process(f"engine{i}", [args.engine, f"--model={TINY}", "--model-id=tiny", *urls,
                                      f"--admin-listen=unix:{DIR}/e{i}.admin", f"--name=e{i}",
                                      f"--lease-ms={LEASE_MS}", "--batch-jobs=16"], env)
               for i in range(ENGINES)]
    (DIR / "secret").write_text("x" * 32)
    wait_for("a model card", lambda: "tiny" in redis_cli("queue", "hkeys", "pe:cards"))
    services, ports = [], []
    for tenant in TENANTS:
        ready = DIR / f"{tenant}.ready"
        services.append(Process(f"service-{tenant}", [
            args.service, *urls, "--listen=127.0.0.1:0", f"--admin-listen=unix:{DIR}/{tenant}.admin",
            f"--key-secret-file={DIR}/secret", f"--tenant={tenant}", f"--ready-file={ready}"]))
        wait_for(f"service {tenant}", ready.exists)
        ports.append(int(ready.read_text().splitlines()[0].split(":")[-1]))

    per_client = args.jobs // len(TENANTS) // 8
    clients = []
    for t, tenant in enumerate(TENANTS):
        for c in range(8):
            words = [f"{tenant} {c} {i}" for i in range(per_client)]
            requests = [words[i:i + 2] for i in range(0, len(words), 2)]
            if c == 0:
                requests.insert(len(requests) // 3, [f"poison {tenant} {POISON}"])
            clients.append(Client(ports[t], requests))

    # what goes wrong, spread over the work
    faults = ["engine"] * args.engine_kills + ["queue"] * args.queue_kills + \
        ["flush"] * args.flushes + ["events"] * args.event_losses + \
        ["pause"] * args.cache_pauses
    random.shuffle(faults)
    started = time.time()

    def done():
        return sum(c.answered for c in clients)

    def reviver():
        while not STOP.is_set():
            for p in engines + [queue, cache]:
                p.revive()
            time.sleep(0.1)

    threading.Thread(target=reviver, daemon=True).start()
    for client in clients:
        client.start()
    total = sum(len(r) for c in clients for r in c.requests)
    for i, fault in enumerate(faults):
        goal = total * (i + 1) // (len(faults) + 2)
        end = time.time() + 20
        while done() < goal and time.time() < end:
            time.sleep(0.01)
        if fault == "engine":
            random.choice(engines).kill()
        elif fault == "queue":
            queue.kill()
        elif fault == "flush":
            redis_cli("cache", "flushall")
        elif fault == "pause":  # C hangs: what is in hand must wait for it, not die
            cache.process.send_signal(signal.SIGSTOP)
            time.sleep(8)
            cache.process.send_signal(signal.SIGCONT)
        else:  # events are only hints
            redis_cli("queue", "del", f"{queue_base()}:ev")
    deadline = time.time() + 240
    for client in clients:
        client.join(max(0.1, deadline - time.time()))
    base = queue_base()
    left = {k: redis_cli("queue", "zcard", f"{base}:{k}").strip() for k in "wdl"}
    problems = [p for c in clients for p in c.problems]
    if any(c.is_alive() for c in clients):
        problems.append(f"{sum(c.is_alive() for c in clients)} clients still wait: "
                        f"{done()} of {total} prompts answered")
    if any(v != "0" for v in left.values()):
        problems.append(f"left in the queue: {left}")
    dead = int(redis_cli("queue", "zcard", f"{base}:x").strip() or 0)
    if dead != len(TENANTS):
        problems.append(f"{dead} dead jobs, want the {len(TENANTS)} poison ones")
    if not problems:
        for engine in engines:  # a killed one may still wait for its name
            wait_for("an engine", lambda e=engine: answers(DIR / f"{e.name[0]}{e.name[-1]}.admin"))
        problems += quiet_time(ports[0], engines)
    print(f"seed {args.seed}: {done()} of {total} prompts in {time.time() - started:.1f} s; killed "
          f"engines {sum(e.kills for e in engines)} times, Q {queue.kills} times, C emptied "
          f"{args.flushes} times, events lost {args.event_losses} times; {sum(c.retries for c in clients)} requests repeated, {dead} dead")
    STOP.set()
    for process in services + engines + [queue, cache]:
        process.stop()
    for log in DIR.glob("*.log"):  # what a sanitizer had to say
        text = log.read_text(errors="replace")
        if "Sanitizer" in text or "runtime error" in text:
            problems.append(f"{log.name}: a sanitizer found something")
    for problem in problems[:20]:
        print("FAILED:", problem)
    if problems:
        print(f"logs in {DIR}")
        return 1
    shutil.rmtree(DIR)
    return 0


if __name__ == "__main__":
    if shutil.which("redis-server") is None:
        print("SKIPPED: no redis-server")
        sys.exit(77)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main())
