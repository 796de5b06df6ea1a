#!/usr/bin/env python3
"""What HTTP, queue and cache cost beside bare Redis; numbers, not verdicts.

    bench_service.py BIN_DIR TESTS_DIR [--rounds N] [--parked N]

Starts two Redis servers, the service and the real worker over an engine without a model
(service/stub_engine.c) on this machine. One result of 12.6 MB (1024 tokens, float32):
  hit    the answer from the cache, beside reading the same pieces with bare HGETs and sending them
         over loopback
  miss   the answer less the engine's own time, beside writing the pieces, reading them and sending
         them
taking turns in one run. Then N connections wait for N different prompts while the engine stands
still: memory for each, and how long after its result the slowest was answered. Standard library.
"""
import argparse
import json
import os
import pathlib
import resource
import selectors
import shutil
import signal
import socket
import statistics
import time

from rig import PIECE, Programs, Redis, metric, receive, send_over_loopback, timed

parser = argparse.ArgumentParser()
parser.add_argument("bin", type=pathlib.Path)
parser.add_argument("tests", type=pathlib.Path)
parser.add_argument("--rounds", type=int, default=15)
parser.add_argument("--parked", type=int, default=5000)
args = parser.parse_args()
TINY = args.tests.resolve() / "golden/gemma3-tiny"
PROGRAMS = Programs()
DIR = PROGRAMS.dir


def http(port, prompt, wait=60, more=None):
    """One request on a new connection; the body's bytes and the headers."""
    body = json.dumps({"prompt": prompt, "dtype": "float32", **(more or {})}).encode()
    with socket.create_connection(("127.0.0.1", port)) as s:
        s.sendall(b"POST /v1/encode HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                  b"Connection: close\r\nPrefer: wait=%d\r\nContent-Length: %d\r\n\r\n%s" %
                  (wait, len(body), body))
        return receive(s)


def transfers(port, cache):
    long = "word " * 3000
    hits, misses, reads, writes, sends = [], [], [], [], []
    size = 0
    for i in range(args.rounds + 2):
        before = metric(DIR / "engine.admin", "pe_batch_seconds_sum")
        ms, (head, size) = timed(http, port, f"{i} {long}")
        own = (metric(DIR / "engine.admin", "pe_batch_seconds_sum") - before) * 1e3
        assert " 200 " in head.splitlines()[0] and "X-Cache: miss" in head, head
        miss = ms - own
        ms, (head, _) = timed(http, port, f"{i} {long}")
        assert "X-Cache: hit" in head, head
        data = os.urandom(size)
        pieces = [data[at:at + PIECE] for at in range(0, size, PIECE)]

        def write():
            for k, piece in enumerate(pieces):
                cache.send("HSET", "bare", k, piece)
            return [cache.read() for _ in pieces]

        def read():
            return [cache("HGET", "bare", k) for k in range(len(pieces))]

        write_ms, _ = timed(write)
        read_ms, got = timed(read)
        send_ms, _ = timed(send_over_loopback, got)
        cache("DEL", "bare")
        if i >= 2:
            for values, value in ((hits, ms), (misses, miss), (writes, write_ms),
                                  (reads, read_ms), (sends, send_ms)):
                values.append(value)
    hit, miss, write, read, send = (statistics.median(v) for v in
                                    (hits, misses, writes, reads, sends))
    print(f"a result of {size / 1e6:.1f} MB, {args.rounds} rounds, medians in ms")
    print(f"  bare: write {write:.1f}, read {read:.1f}, send {send:.1f}")
    print(f"  hit  {hit:.1f}, bare read + send {read + send:.1f}: ratio {hit / (read + send):.2f}")
    print(f"  miss {miss:.1f} beside the engine's own time, bare write + read + send "
          f"{write + read + send:.1f}: ratio {miss / (write + read + send):.2f}")
    small = [timed(http, port, "short", 60, {"layers": [0]})[0] for _ in range(200)]
    print(f"  a small hit on a new connection: {statistics.median(small[20:]):.2f}")


def resident_kb(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    return 0


def parked(port, service, engine):
    n = args.parked
    engine.send_signal(signal.SIGSTOP)
    before = resident_kb(service.pid)
    waiting = selectors.DefaultSelector()
    sockets = []
    for i in range(n):
        body = json.dumps({"prompt": f"parked {i}", "layers": [0]}).encode()
        s = socket.create_connection(("127.0.0.1", port))
        s.sendall(b"POST /v1/encode HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                  b"Connection: close\r\nPrefer: wait=120\r\nContent-Length: %d\r\n\r\n%s" %
                  (len(body), body))
        sockets.append(s)
        waiting.register(s, selectors.EVENT_READ)
    PROGRAMS.wait_for(lambda: metric(DIR / "service.admin", "pe_connections_parked") >= n)
    memory = (resident_kb(service.pid) - before) / n
    engine.send_signal(signal.SIGCONT)
    answered, keys = {}, {}
    while len(answered) < n:
        for key, _ in waiting.select():
            data = key.fileobj.recv(65536)
            answered[key.fileobj] = time.time() * 1e3
            assert b" 200 " in data[:20], data[:300]
            keys[key.fileobj] = data.split(b'ETag: "')[1].split(b".")[0].decode()
            waiting.unregister(key.fileobj)
    lags = []
    for s, id_ in keys.items():
        with socket.create_connection(("127.0.0.1", port)) as ask:
            ask.sendall(f"GET /v1/jobs/{id_} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
                        .encode())
            answer = ask.makefile("rb").read().partition(b"\r\n\r\n")[2]
        lags.append(answered[s] - json.loads(answer)["jobs"][0]["finished_ms"])
        s.close()
    lags.sort()
    print(f"{n} parked connections: {memory:.1f} KiB each; answered after their result: median "
          f"{statistics.median(lags):.0f} ms, 99 % {lags[n * 99 // 100]:.0f} ms, slowest "
          f"{lags[-1]:.0f} ms")


def main():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for name in ("queue", "cache"):
        (DIR / name).mkdir()
    try:
        measure()
    finally:
        PROGRAMS.stop()
        shutil.rmtree(DIR)


def measure():
    start, wait_for = PROGRAMS.start, PROGRAMS.wait_for
    start("queue", "redis-server", "--port", 0, "--unixsocket", DIR / "queue.sock", "--dir",
          DIR / "queue", "--save", "", "--appendonly", "yes", "--appendfsync", "always")
    start("cache", "redis-server", "--port", 0, "--unixsocket", DIR / "cache.sock", "--dir",
          DIR / "cache", "--save", "", "--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lfu")
    wait_for(lambda: (DIR / "queue.sock").exists() and (DIR / "cache.sock").exists())
    time.sleep(0.3)
    urls = [f"--redis-queue=unix:{DIR}/queue.sock", f"--redis-cache=unix:{DIR}/cache.sock"]
    engine = start("engine", args.bin / "stub_engine", f"--model={TINY}", "--model-id=bench", *urls,
                   f"--admin-listen=unix:{DIR}/engine.admin", f"--ready-file={DIR}/engine.ready",
                   "--batch-jobs=64", "--lease-ms=600000", STUB_STATES="4", STUB_WIDTH="768")
    wait_for((DIR / "engine.ready").exists)
    (DIR / "secret").write_text("x" * 32)
    service = start("service", args.bin / "prompt-encoder-service", *urls, "--listen=127.0.0.1:0",
                    f"--admin-listen=unix:{DIR}/service.admin", f"--key-secret-file={DIR}/secret",
                    f"--ready-file={DIR}/service.ready", "--log-level=warn")
    wait_for((DIR / "service.ready").exists)
    port = int((DIR / "service.ready").read_text().splitlines()[0].split(":")[-1])
    transfers(port, Redis(DIR / "cache.sock"))
    parked(port, service, engine)


if __name__ == "__main__":
    main()
