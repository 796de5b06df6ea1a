#!/usr/bin/env python3
"""A rank fails, hangs or is killed at every stage: its engine ends, and its jobs are answered right.

    test_rank_faults.py SERVICE ENGINE FAULTY_ENGINE TESTS_DIR SCRATCH_DIR [--full]

Each case starts the engine's program with one fault in it (faulty_engine.c), on a queue that has a
request of a prompt a rank. The engine must end within seconds, with one line in its log that says
which rank failed, on what device, at what; nothing of the request may be in the cache; and an engine
without a fault, started then, must answer it as an engine of one rank does. Out of memory in a batch
whose ranks work by themselves is no reason to end: it is halved. Without --full every op fails in
every way, at some rank. Standard library only; exit 77 where there is no redis-server.
"""
import argparse
import concurrent.futures
import http.client
import itertools
import json
import math
import os
import pathlib
import queue
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time

parser = argparse.ArgumentParser()
for name in ("service", "engine", "faulty", "tests", "scratch"):
    parser.add_argument(name, type=lambda path: pathlib.Path(path).resolve())
parser.add_argument("--full", action="store_true")
parser.add_argument("--only", help="cases whose name has this in it")
args = parser.parse_args()

MODEL = [f"--model={args.tests}/golden/gemma3-tiny", "--model-id=tiny",
         f"--ltx={args.tests}/golden/ltx-tiny-v2.safetensors"]
STACKS = 6  # cases wait most of their time
DEADLINE_S, OPENING_S, END_S = 2, 20, 5  # --rank-deadline; ten times that; what is promised after it
BOUND = 1e-5
WHERE = {  # what the log may call the place
    "open": {"open", "load"}, "join": {"join"}, "matrix_load": {"load"},
    "alloc": {"load", "make room"}, "sleep": {"sleep"}, "wake": {"wake"}, "embed": {"layers"}, "attention": {"layers"},
    "all_reduce": {"layers"}, "all_gather": {"layers", "connectors"},
    "fill_rows": {"connectors"}, "full_attention": {"connectors"},
    "encode": {"connectors", "features", "layers"}, "download": {"results"}, "sync": {"results"},
}
KINDS = ("gpu", "mem", "hang", "kill")
# op, which call of it, at the start, when it falls asleep or is woken, or in a batch; strategies
STAGES = [("open", 1, "start", "rs"), ("join", 1, "start", "rs"), ("matrix_load", 3, "start", "rs"),
          ("alloc", 9, "start", "rs"), ("attention", 2, "start", "rs"),
          ("sleep", 1, "idle", "rs"), ("wake", 1, "asleep", "rs"), ("embed", 1, "batch", "rs"), ("attention", 3, "batch", "rs"),
          ("all_reduce", 4, "batch", "s"), ("all_gather", 1, "batch", "s"),
          ("all_gather", 4, "batch", "s"), ("fill_rows", 2, "batch", "rs"),
          ("full_attention", 2, "batch", "rs"), ("encode", 1, "batch", "rs"),
          ("download", 1, "batch", "rs"), ("sync", 1, "batch", "rs")]


def all_cases():
    places = [(n, rank) for n in (2, 3) for rank in range(n)]
    turn = itertools.count()
    for (op, call, when, strategies), kind in itertools.product(STAGES, KINDS):
        ways = [({"r": "replicated", "s": "sharded"}[s], n, rank)
                for n, rank in places for s in strategies]
        for way in ways if args.full else [ways[next(turn) * 3 % len(ways)]]:
            yield op, call, when, kind, *way


def wait_until(true, seconds, what):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return
        time.sleep(0.01)
    raise AssertionError(f"{what} did not come within {seconds} s")


def deadline(kind):
    """A short one where it is what ends the engine: a loaded machine is slow at times."""
    return [f"--rank-deadline={DEADLINE_S}"] if kind == "hang" else []


def prompts_of(case):
    op, call, when, kind, strategy, n, rank = case
    return [f"{op} {call} {when} {kind} {strategy} rank {rank} of {n}: prompt {i}"
            + " and more" * (3 * i) for i in range(n)]


def tensors_of(body):
    length = struct.unpack("<Q", body[:8])[0]
    header = json.loads(body[8:8 + length])
    header.pop("__metadata__")
    out = {}
    for key, t in header.items():
        begin, end = (8 + length + at for at in t["data_offsets"])
        out[key] = (struct.unpack(f"<{(end - begin) // 4}f", body[begin:end])
                    if t["dtype"] == "F32" else body[begin:end])
    return out


def check_same(got, want):
    got, want = tensors_of(got), tensors_of(want)
    assert list(got) == list(want), (list(got), list(want))
    for key, values in want.items():
        if isinstance(values, bytes):
            assert got[key] == values, key
            continue
        size = math.sqrt(sum(x * x for x in values))
        apart = math.sqrt(sum((x - y) ** 2 for x, y in zip(got[key], values)))
        assert apart <= BOUND * size, f"{key}: {apart / size:.1e}"


class Stack:
    """Redis of both roles and a service, for one case after another."""

    def __init__(self, number):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix=f"pe-rank-faults{number}-", dir="/tmp"))
        self.processes, self.n = [], 0
        for role, *settings in (("queue", "--appendonly", "yes", "--appendfsync", "always",
                                 "--maxmemory-policy", "noeviction"),
                                ("cache", "--maxmemory-policy", "allkeys-lfu", "--maxmemory",
                                 "512mb")):
            (self.dir / role).mkdir()
            self.start(role, "redis-server", "--port", "0", "--unixsocket",
                       self.dir / f"{role}.sock", "--dir", self.dir / role, "--save", "", *settings)
        for role in ("queue", "cache"):
            wait_until(lambda r=role: self.redis(r, "ping") == "PONG", 20, role)
        self.urls = [f"--redis-{role}=unix:{self.dir}/{role}.sock" for role in ("queue", "cache")]
        ready = self.dir / "service.ready"
        (self.dir / "secret").write_text("x" * 32)
        self.start("service", args.service, *self.urls, "--listen=127.0.0.1:0",
                   f"--admin-listen=unix:{self.dir}/service.admin",
                   f"--key-secret-file={self.dir}/secret", f"--ready-file={ready}")
        wait_until(ready.exists, 20, "the service")
        self.port = int(ready.read_text().splitlines()[0].split(":")[-1])
        self.stop(self.healthy(1))  # the service knows the model from now on

    def start(self, name, *argv, **env):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PE_", "FAULT_"))}
        clean["XDG_CACHE_HOME"] = str(args.scratch / "cache")  # of digests
        # an engine that failed ends without joining a thread that hangs
        clean["TSAN_OPTIONS"] = f"{clean.get('TSAN_OPTIONS', '')} report_thread_leaks=0"
        with open(self.dir / f"{name}.log", "ab") as log:
            process = subprocess.Popen([str(a) for a in argv], stdout=log, stderr=log,
                                       env={**clean, **env})
        self.processes.append(process)
        return process

    def engine(self, program, name, *flags, **env):
        process = self.start(name, program, *MODEL, *self.urls, "--lease-ms=1000", "--threads=3",
                             f"--admin-listen=unix:{self.dir}/{name}.admin",
                             f"--ready-file={self.dir}/{name}.ready", *flags, **env)
        return process

    def healthy(self, n, strategy="auto"):
        self.n += 1
        name = f"healthy{self.n}"
        process = self.engine(args.engine, name, f"--ranks={n}", f"--strategy={strategy}")
        wait_until(lambda: (self.dir / f"{name}.ready").exists() or process.poll() is not None, 60,
                   name)
        assert process.poll() is None, (self.dir / f"{name}.log").read_text()
        return process

    def stop(self, process):
        process.terminate()
        assert process.wait(30) == 0, process.returncode
        self.processes.remove(process)

    def end(self):
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait(30)
        self.processes.clear()
        logs = "".join(log.read_text(errors="replace") for log in self.dir.glob("*.log"))
        for words in ("Sanitizer", "runtime error"):
            assert words not in logs, logs[logs.index(words) - 200:][:3000]
        shutil.rmtree(self.dir)

    def end_quietly(self):
        for process in self.processes:
            process.kill()
            process.wait()
        self.processes.clear()

    def redis(self, role, *words):
        return subprocess.run(["redis-cli", "-s", str(self.dir / f"{role}.sock"), *words],
                              capture_output=True, text=True).stdout.strip()

    def results(self):
        return {key for key in self.redis("cache", "keys", "r:*").split()}

    def encode(self, prompts, **more):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("POST", "/v1/encode", json.dumps(
            {"prompts": prompts, "dtype": "float32", "output": "embeddings", **more}),
            {"Content-Type": "application/json", "Prefer": "wait=100"})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        assert answer.status == 200, (answer.status, body[:300])
        return body

    def await_end(self, process, mark, seconds, log):
        """Of an engine in which the fault happens: its exit status."""
        wait_until(lambda: mark.exists() or process.poll() is not None, 60, "the fault")
        begin = time.monotonic()
        assert mark.exists(), log.read_text()
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it has not ended after {seconds} s:\n{log.read_text()}")
        self.processes.remove(process)
        return status, time.monotonic() - begin

    def run(self, case, want):
        op, call, when, kind, strategy, n, rank = case
        self.n += 1
        name = f"faulty{self.n}"
        mark, arm, log = (self.dir / f"{name}.{end}" for end in ("mark", "arm", "log"))
        env = {"FAULT_RANK": str(rank), "FAULT_OP": op, "FAULT_CALL": str(call),
               "FAULT_KIND": kind, "FAULT_MARK": str(mark)}
        device = "cpu"
        flags = ["--sleep-after=1"] if op in ("sleep", "wake") else []
        if op in ("matrix_load", "alloc", "sleep", "wake"):  # each rank has its own weights
            env["FAULT_GPUS"] = str(n)
            device = f"GPU-fake-{rank}"
        if when == "batch":
            env["FAULT_ARM"] = str(arm)
        prompts, before = prompts_of(case), self.results()
        process = self.engine(args.faulty, name, f"--ranks={n}", f"--strategy={strategy}",
                              *deadline(kind), *flags, **env)
        if when == "batch":
            wait_until(lambda: (self.dir / f"{name}.ready").exists(), 60, name)
            arm.touch()
        if when == "asleep":
            wait_until(lambda: " asleep " in log.read_text(), 60, "sleep")
        if when == "idle":
            wait_until(mark.exists, 60, "the fault")
        answer = POOL.submit(self.encode, prompts)
        copes = {"sleep": "sleep_failed", "wake": "wake_failed"}.get(
            op, "batch_halved" if when == "batch" and strategy == "replicated" else None)
        if kind == "mem" and copes is not None:
            check_same(answer.result(60), want)
            assert mark.exists() and f" {copes} " in log.read_text(), log.read_text()
            self.stop(process)
            return 0.0
        allowed = END_S
        if kind == "hang":
            allowed += DEADLINE_S if when == "batch" or op == "attention" else OPENING_S
        status, seconds = self.await_end(process, mark, allowed, log)
        text = log.read_text()
        assert status == (-9 if kind == "kill" else 1), (status, text)
        events = re.findall(r" error rank_failed rank=(\d+) device=(\S+) operation=\"([^\"]*)\" "
                            r"text=\"([^\"]+)\"", text)
        if kind == "mem" and when == "start" and op == "attention" and strategy == "replicated":
            # a batch that one rank has by itself: memory may be there the next time
            assert not events and text.endswith("prompt-encoder-engine: faulty: attention\n"), text
        elif kind != "kill":
            assert len(events) == 1 and text.count("rank_failed") == 1, text
            assert events[0][:2] == (str(rank), device), (events, text)
            assert events[0][2] in WHERE[op], (events, text)
            assert kind == "hang" or events[0][3].endswith(f"faulty: {op}"), events
            assert f" rank {rank}: {events[0][3]}\n" in text.splitlines(True)[-1], text
        assert self.results() <= before, "a result reached the cache"  # others expire
        assert not answer.done(), answer.exception()
        healthy = self.healthy(n, strategy)
        check_same(answer.result(60), want)
        self.stop(healthy)
        return seconds


def check_account(stack):
    """A GPU that failed twice within an hour is left out, until its lines are deleted."""
    state, log = stack.dir / "state", lambda name: (stack.dir / f"{name}.log").read_text()
    file = state / "failed-gpus"
    flags = ("--ranks=2", "--strategy=sharded", f"--state={state}")
    fault = {"FAULT_GPUS": "2", "FAULT_RANK": "1", "FAULT_OP": "attention"}
    for i, kind in enumerate(("hang", "mem", "gpu", "gpu")):  # the first two blame no GPU
        process = stack.engine(args.faulty, f"account{i}", *flags, *deadline(kind), FAULT_KIND=kind, **fault)
        assert process.wait(30) == 1, log(f"account{i}")
        stack.processes.remove(process)
        lines = file.read_text().splitlines() if file.exists() else []
        failures = [line for line in lines if not line.startswith("#")]
        assert len(failures) == max(0, i - 1), (kind, lines, log(f"account{i}"))
        assert " gpu_left_out " not in log(f"account{i}")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ GPU-fake-1 faulty: attention", failures[1])

    def serves(name, **env):  # with the same fault: it has no rank any more
        process = stack.engine(args.faulty, name, *flags, **{**fault, "FAULT_KIND": "gpu", **env})
        wait_until(lambda: (stack.dir / f"{name}.ready").exists() or process.poll() is not None, 60,
                   name)
        assert process.poll() is None, log(name)
        stack.encode([f"of {name}"])
        stack.stop(process)
    serves("without")
    assert f" warn gpu_left_out gpu=GPU-fake-1 file={file} " in log("without"), log("without")
    assert " ranks=1 " in log("without")
    file.write_text(file.read_text() + "2026-01-01T00:00:00Z GPU-fake-0\n2026-01-01T01:00:00Z GPU-fake-0\n")
    process = stack.engine(args.faulty, "none", *flags, **fault)
    assert process.wait(30) == 1
    stack.processes.remove(process)
    assert f"all 2 GPUs are left out; they failed twice: delete {file}\n" in log("none"), log("none")
    file.unlink()
    serves("again", FAULT_RANK="7")
    assert " ranks=2 " in log("again") and " gpu_left_out " not in log("again"), log("again")


POOL = concurrent.futures.ThreadPoolExecutor(2 * STACKS)


def main(all_stacks):
    if shutil.which("redis-server") is None:
        print("no redis-server")
        return 77
    cases = [c for c in all_cases() if args.only is None or args.only in " ".join(map(str, c))]
    stacks, failures, slowest = queue.Queue(), [], 0.0
    begin = time.monotonic()
    all_stacks.extend(POOL.map(Stack, range(STACKS)))
    for stack in all_stacks:
        stacks.put(stack)
    one = all_stacks[0].healthy(1)  # what is right: of an engine of one rank, nothing of it kept
    wants = [all_stacks[0].encode(prompts_of(case), cache="bypass") for case in cases]
    all_stacks[0].stop(one)

    def run(case, want):
        stack = stacks.get()
        try:
            return stack.run(case, want)
        except Exception as e:
            failures.append(case)
            print(f"FAIL {case}: {e!r}".replace("\\n", "\n"), flush=True)
            stack.end_quietly()  # what else it has may be at fault by now
            all_stacks.remove(stack)
            stack = Stack(len(failures) + STACKS)
            all_stacks.append(stack)
            return 0.0
        finally:
            stacks.put(stack)

    with concurrent.futures.ThreadPoolExecutor(STACKS) as runners:
        times = list(runners.map(run, cases, wants))
    if args.only is None or args.only in "account":
        check_account(all_stacks[0])
    for stack in all_stacks:
        stack.end()
    print(f"{len(cases)} cases, {len(failures)} failed, the slowest end {max(times, default=0.0):.1f} s after "
          f"its fault, {time.monotonic() - begin:.0f} s in all")
    return 1 if failures else 0


everything = []
try:
    sys.exit(main(everything))
finally:
    for one_stack in everything:
        one_stack.end_quietly()
