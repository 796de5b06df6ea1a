#!/usr/bin/env python3
"""From HTTP to embeddings and back, with a real engine, beside what Redis itself could do; numbers,
not verdicts.

    bench_end_to_end.py BIN_DIR TESTS_DIR [options] [-- the engine's options]
    bench_end_to_end.py build/cuda/bin tests -- --model random:gemma-3-12b --ltx random:ltx-2.3 \\
        --backend cuda --compute bfloat16

For each number of cache servers (--caches 1,4) a queue, that many caches, an engine and a service
are started, all at once at the beginning: an engine takes seconds to load, and one that has no work
disturbs nobody. Embeddings in bfloat16 (12.6 MB a prompt with LTX-2.3); no prompt comes twice.

  bare      pieces of 1 MiB written to and read from the cache servers by a process a connection,
            12 at a time without waiting: the ceiling. Its first round is not counted: it makes the
            memory there.
  one       one prompt of 61 tokens on a new connection: a miss, the engine's own time in it, then
            the same prompt again, a hit; in turns with the same bytes written, read and sent by
            hand, on one connection
  many      clients that each ask again and again for 32 new prompts (61 and 30 tokens in turn) at
            once, and clients that ask for one; `engine` is how many prompts a second it encoded
            while it did

With --engine stub_engine, STUB_VIDEO=4096 STUB_AUDIO=2048 and `-- --model tests/golden/gemma3-tiny`,
which only gives a name, nothing is computed, and the rest has the right size. Standard library.
"""
import argparse
import json
import multiprocessing
import os
import pathlib
import shutil
import signal
import socket
import statistics
import sys
import time

from rig import PIECE, Programs, Redis, metric, receive, send_over_loopback, timed

BURST = 12  # pieces: about a prompt's embeddings
TOKENS = (61, 30)


class Stack:
    """A queue, caches, an engine and a service."""

    def __init__(self, programs, args, n_caches):
        self.programs, self.args, self.n_caches = programs, args, n_caches
        self.dir = programs.dir / str(n_caches)
        self.cache_sockets = [self.dir / f"cache{i}.sock" for i in range(n_caches)]
        for name in ["queue"] + [f"cache{i}" for i in range(n_caches)]:
            (self.dir / name).mkdir(parents=True)
            settings = ["--appendonly", "yes", "--appendfsync", "always"]
            if name != "queue":
                settings = ["--maxmemory", f"{args.cache_mb // n_caches}mb", "--maxmemory-policy",
                            "allkeys-lfu"]
            programs.start(f"{name}-of-{n_caches}", args.redis_server, "--port", 0, "--unixsocket",
                           self.dir / f"{name}.sock", "--dir", self.dir / name, "--save", "",
                           *settings)

    def start_engine(self):
        for path in [self.dir / "queue.sock", *self.cache_sockets]:
            self.programs.wait_for(path.exists)
        time.sleep(0.3)
        caches = ",".join(f"unix:{path}" for path in self.cache_sockets)
        self.urls = [f"--redis-queue=unix:{self.dir}/queue.sock", f"--redis-cache={caches}"]
        self.programs.start(
            f"engine-of-{self.n_caches}", self.args.bin / self.args.engine, "--model-id=bench",
            f"--tokenizer={self.args.tests}/golden/gemma3-tiny", "--probe-every=3600", *self.urls,
            f"--admin-listen=unix:{self.dir}/engine.admin", f"--ready-file={self.dir}/engine.ready",
            "--log-level=warn", *self.args.options)

    def start_service(self):
        self.programs.wait_for((self.dir / "engine.ready").exists)
        (self.dir / "secret").write_text("x" * 32)
        self.programs.start(
            f"service-of-{self.n_caches}", self.args.bin / "prompt-encoder-service", *self.urls,
            "--listen=127.0.0.1:0", f"--admin-listen=unix:{self.dir}/service.admin",
            f"--key-secret-file={self.dir}/secret", f"--ready-file={self.dir}/service.ready",
            "--log-level=warn")
        ready = self.dir / "service.ready"
        self.programs.wait_for(ready.exists)
        self.port = int(ready.read_text().splitlines()[0].split(":")[-1])

    def engine_metric(self, series):
        return metric(self.dir / "engine.admin", series)

    def flush(self):
        for path in self.cache_sockets:
            Redis(path)("FLUSHALL")

    def post(self, route, body):
        """On a new connection; head, bytes of the body."""
        body = json.dumps(body).encode()
        with socket.create_connection(("127.0.0.1", self.port)) as s:
            s.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                      b"Connection: close\r\nPrefer: wait=120\r\nContent-Length: %d\r\n\r\n%s" %
                      (route.encode(), len(body), body))
            return receive(s)

    def encode(self, prompts, found):
        """How many bytes; every prompt must be a `found` ("hit", "miss")."""
        head, n = self.post("/v1/encode", {"prompts": prompts, "output": "embeddings",
                                           "dtype": "bfloat16"})
        if " 200 " not in head.splitlines()[0] or f"X-Cache: {found}" not in head:
            raise SystemExit(f"expected a {found}:\n{head}")
        return n


def prompt(name, n_tokens):
    """One that no other name has, of so many tokens of the tiny tokenizer, about: a token is
    <bos>, a digit, or " a"."""
    digits = f"{name:07}"
    return digits + " a" * (n_tokens - 1 - len(digits))


# ---- bare Redis ----

def bare_process(path, place, turns, n_bursts, ready, go, times):
    """Writes bursts of pieces and reads them, whenever all are at that point."""
    redis = Redis(path)
    piece = os.urandom(PIECE)
    room = memoryview(bytearray(BURST * (PIECE + 32)))
    head = len(b"$%d\r\n" % PIECE)

    def write(burst):
        for k in range(BURST):
            redis.send("HSET", f"bare:{place}:{burst}", k, piece)
        for _ in range(BURST):
            redis.read()

    def read(burst):
        words = b"".join(b"*3\r\n$4\r\nHGET\r\n$%d\r\n%s\r\n$%d\r\n%d\r\n" %
                         (len(key), key, len(str(k)), k)
                         for key in [f"bare:{place}:{burst}".encode()] for k in range(BURST))
        redis.socket.sendall(words)
        got, all_bytes = 0, BURST * (head + PIECE + 2)
        while got < all_bytes:
            got += redis.socket.recv_into(room[got:all_bytes])

    for _ in range(turns):
        for what in (write, read):
            ready.wait()
            go.wait()
            for burst in range(n_bursts):
                what(burst)
            times.wait()


def bare(stack, n_connections, n_bursts, turns):
    """GB/s of writing and of reading, of all connections together: the last turn's."""
    barriers = [multiprocessing.Barrier(n_connections + 1) for _ in range(3)]
    processes = [multiprocessing.Process(
        target=bare_process,
        args=(stack.cache_sockets[i % stack.n_caches], i, turns, n_bursts, *barriers))
        for i in range(n_connections)]
    for process in processes:
        process.start()
    rates = []
    for _ in range(2 * turns):
        barriers[0].wait()
        begin = time.perf_counter()
        barriers[1].wait()
        barriers[2].wait()
        rates.append(n_connections * n_bursts * BURST * PIECE / 1e9 /
                     (time.perf_counter() - begin))
    for process in processes:
        process.join()
    stack.flush()
    return rates[-2:]


def print_bare(stack, args):
    for n_connections in dict.fromkeys((stack.n_caches, 4, 8)):
        n_bursts = max(1, args.bare_mb // (BURST * n_connections))
        write, read = bare(stack, n_connections, n_bursts, 2)
        both = 1 / (1 / write + 1 / read)
        print(f"bare, {stack.n_caches} caches, {n_connections} connections: write {write:.2f} "
              f"GB/s, read {read:.2f} GB/s; a prompt's {BURST} pieces both ways "
              f"{BURST * PIECE / 1e6 / both:.1f} ms, {both * 1e9 / (BURST * PIECE):.0f} prompts/s",
              flush=True)


# ---- one prompt ----

def print_one(stack, args, name):
    path = stack.cache_sockets[0]
    cache = Redis(path)
    rows = {row: [] for row in ("miss", "engine", "hit", "write", "read", "send")}
    for i in range(args.rounds + 3):
        text = prompt(name + i, TOKENS[0])
        before = stack.engine_metric("pe_batch_seconds_sum")
        miss, size = timed(stack.encode, [text], "miss")
        engine = (stack.engine_metric("pe_batch_seconds_sum") - before) * 1e3
        hit, _ = timed(stack.encode, [text], "hit")
        key = f"bare:{i}"  # kept as results are: both need new memory
        data = os.urandom(size)
        pieces = [data[at:at + PIECE] for at in range(0, size, PIECE)]
        room = memoryview(bytearray(size + 64 * len(pieces)))

        def write():
            for k, piece in enumerate(pieces):
                cache.send("HSET", key, k, piece)
            for _ in pieces:
                cache.read()

        def read():
            for k in range(len(pieces)):
                cache.send("HGET", key, k)
            left = sum(len(b"$%d\r\n" % len(p)) + len(p) + 2 for p in pieces)
            while left > 0:
                left -= cache.socket.recv_into(room[:left])

        write_ms, _ = timed(write)
        read_ms, _ = timed(read)
        send_ms, _ = timed(send_over_loopback, pieces)
        if i >= 3:
            for values, value in zip(rows.values(), (miss, engine, hit, write_ms, read_ms, send_ms)):
                values.append(value)
    at = {row: statistics.median(values) for row, values in rows.items()}
    added = statistics.median(m - e for m, e in zip(rows["miss"], rows["engine"]))
    by_hand = at["read"] + at["send"]
    print(f"one prompt, {stack.n_caches} caches, {size / 1e6:.2f} MB, {args.rounds} rounds, ms: "
          f"miss {at['miss']:.2f} (engine {at['engine']:.2f}), hit {at['hit']:.2f}; by hand: write "
          f"{at['write']:.2f}, read {at['read']:.2f}, send {at['send']:.2f}")
    print(f"    added to a miss {added:.2f}, write + read + send {at['write'] + by_hand:.2f}: "
          f"{added / (at['write'] + by_hand):.2f}; a hit beside read + send {by_hand:.2f}: "
          f"{at['hit'] / by_hand:.2f}", flush=True)
    stack.flush()
    return name + args.rounds + 3


# ---- many ----

def client(stack, first, n_requests, n_prompts, start):
    start.wait()
    for i in range(n_requests):
        at = first + i * n_prompts
        stack.encode([prompt(at + k, TOKENS[k % len(TOKENS)]) for k in range(n_prompts)], "miss")


def print_many(stack, n_clients, n_requests, n_prompts, name):
    n = n_clients * n_requests * n_prompts
    start = multiprocessing.Barrier(n_clients + 1)
    clients = [multiprocessing.Process(
        target=client, args=(stack, name + i * n_requests * n_prompts, n_requests, n_prompts,
                             start)) for i in range(n_clients)]
    for process in clients:
        process.start()
    series = ("pe_batch_seconds_sum", "pe_batch_seconds_count", "pe_store_seconds_sum")
    before = [stack.engine_metric(s) for s in series]
    start.wait()
    begin = time.perf_counter()
    for process in clients:
        process.join()
        if process.exitcode != 0:
            raise SystemExit("a client failed")
    seconds = time.perf_counter() - begin
    encoded, batches, stored = (stack.engine_metric(s) - b for s, b in zip(series, before))
    print(f"many, {stack.n_caches} caches, {n_clients} clients of {n_prompts}: {n} prompts in "
          f"{seconds:.2f} s, {n / seconds:.1f} prompts/s; engine {n / encoded:.1f} prompts/s in "
          f"{batches:.0f} batches; storing took {stored / n * 1e3:.1f} ms a prompt", flush=True)
    stack.flush()
    return name + n


def measure(programs, args):
    begin = time.perf_counter()
    stacks = [Stack(programs, args, int(n)) for n in args.caches.split(",")]
    for stack in stacks:
        stack.start_engine()
    for stack in stacks:
        stack.start_service()
    print(f"ready after {time.perf_counter() - begin:.1f} s", flush=True)
    name = 0
    for stack in stacks:
        print_bare(stack, args)
        name = print_one(stack, args, name)
        for scene in args.scenes.split(","):
            n_clients, n_prompts, n_requests = map(int, scene.split("x"))
            name = print_many(stack, n_clients, n_requests, n_prompts, name)
    print(f"{time.perf_counter() - begin:.0f} s in all")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0],
                                     epilog="after --: the engine's options")
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("tests", type=pathlib.Path)
    parser.add_argument("--engine", default="prompt-encoder-engine")
    parser.add_argument("--redis-server", default="redis-server")
    parser.add_argument("--caches", default="1,4", help="cache servers of each stack")
    parser.add_argument("--cache-mb", type=int, default=10000, help="of all of a stack's caches")
    parser.add_argument("--bare-mb", type=int, default=4000, help="of each bare turn")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--scenes", default="1x32x4,2x32x3,4x32x3,8x32x2,32x1x8",
                        help="clients x prompts of a request x requests of each")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:cut])
    args.options = words[cut + 1:]
    multiprocessing.set_start_method("fork")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # not without its programs
    programs = Programs()
    try:
        measure(programs, args)
    finally:
        programs.stop()
        shutil.rmtree(programs.dir)


if __name__ == "__main__":
    main()
