#!/usr/bin/env python3
"""The engine's program around its work: its card in Q, its queue, its metrics, its health.

    test_engine.py SERVICE STUB_ENGINE TESTS_DIR SCRATCH_DIR [unittest's arguments]

The real worker over an engine without a model (stub_engine.c), a real service, a Redis of each role.
Standard library only; exit 77 where there is no redis-server.
"""
import concurrent.futures
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

SERVICE, ENGINE, TESTS, SCRATCH = (pathlib.Path(a).resolve() for a in sys.argv[1:5])
TINY = TESTS / "golden/gemma3-tiny"
HANG, SLOW, BROKEN = "日", "é", "本"  # their last tokens are in no other prompt here
LEARN = f"x {HANG}"  # an engine that has encoded it knows how long 4 to 7 tokens take


def wait_until(true, seconds=20, what="it"):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        got = true()
        if got:
            return got
        time.sleep(0.02)
    raise AssertionError(f"{what} did not come within {seconds} s")


def metadata_of(data):
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + length])["__metadata__"]


def floats_of(data, name):
    length = struct.unpack("<Q", data[:8])[0]
    begin, end = json.loads(data[8:8 + length])[name]["data_offsets"]
    return struct.unpack(f"<{(end - begin) // 4}f", data[8 + length + begin:8 + length + end])


def ids_of(data, name="p0.token_ids"):
    length = struct.unpack("<Q", data[:8])[0]
    begin, end = json.loads(data[8:8 + length])[name]["data_offsets"]
    return data[8 + length + begin:8 + length + end]


def stub_numbers(ids, state, n):
    """As stub_engine.c makes them."""
    seed = 2166136261
    for byte in b"stub" + ids:
        seed = (seed ^ byte) * 16777619 & 0xffffffff
    return tuple(float(((seed + state * 1000003 + i) & 0xffffffff) % 65536) for i in range(n))


def last_id(prompt):
    return str(json.loads(subprocess.run(
        [SERVICE.parent / "prompt-encoder", "tokenize", "-m", TINY, prompt], capture_output=True,
        check=True).stdout)[0][-1])


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="pe-engine-", dir="/tmp"))
        self.processes = []
        for role, *settings in (("queue", "--appendonly", "yes", "--appendfsync", "always",
                                 "--maxmemory-policy", "noeviction"),
                                ("cache", "--appendonly", "no", "--maxmemory-policy",
                                 "allkeys-lfu", "--maxmemory", "512mb")):
            (self.dir / role).mkdir()
            self.start(role, "redis-server", "--port", "0", "--unixsocket",
                       self.dir / f"{role}.sock", "--dir", self.dir / role, "--save", "",
                       *settings)
        for role in ("queue", "cache"):
            wait_until(lambda r=role: self.redis(r, "ping") == "PONG", what=role)
        self.urls = [f"--redis-{role}=unix:{self.dir}/{role}.sock" for role in ("queue", "cache")]

    def tearDown(self):
        for process in reversed(self.processes):
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            process.wait(30)
        for log in self.dir.glob("*.log"):  # what a sanitizer had to say
            text = log.read_text(errors="replace")
            self.assertNotIn("Sanitizer", text)
            self.assertNotIn("runtime error", text)
        shutil.rmtree(self.dir)

    def start(self, name, *argv, **env):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PE_")}
        # an engine of which a thread hangs ends without joining the others
        clean["TSAN_OPTIONS"] = f"{clean.get('TSAN_OPTIONS', '')} report_thread_leaks=0"
        with open(self.dir / f"{name}.log", "ab") as log:
            process = subprocess.Popen([str(a) for a in argv], stdout=log, stderr=log,
                                       env={**clean, **env})
        self.processes.append(process)
        return process

    def engine(self, name, *args, **env):
        ready = self.dir / f"{name}.ready"
        process = self.start(name, ENGINE, f"--model={TINY}", "--model-id=tiny", *self.urls,
                             f"--admin-listen=unix:{self.dir}/{name}.admin",
                             f"--ready-file={ready}", *args, **env)
        wait_until(lambda: ready.exists() or process.poll() is not None, what=name)
        self.assertIsNone(process.poll(), (self.dir / f"{name}.log").read_text())
        return process

    def service(self):
        ready = self.dir / "service.ready"
        (self.dir / "secret").write_text("x" * 32)
        self.start("service", SERVICE, *self.urls, "--listen=127.0.0.1:0",
                   f"--admin-listen=unix:{self.dir}/service.admin",
                   f"--key-secret-file={self.dir}/secret", f"--ready-file={ready}")
        wait_until(ready.exists, what="the service")
        self.port = int(ready.read_text().splitlines()[0].split(":")[-1])

    def encode(self, prompts, wait=30, **more):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/v1/encode", json.dumps(
            {"prompts": prompts, "dtype": "float32", "output": "hidden_states", **more}),
            {"Content-Type": "application/json", "Prefer": f"wait={wait}"})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, body

    def redis(self, role, *words):
        return subprocess.run(["redis-cli", "-s", str(self.dir / f"{role}.sock"), *words],
                              capture_output=True, text=True).stdout.strip()

    def admin(self, name, page):
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(10)
            s.connect(str(self.dir / f"{name}.admin"))
            s.sendall(f"GET {page} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            head, _, body = s.makefile("rb").read().decode().partition("\r\n\r\n")
        return int(head.split()[1]), body

    def metric(self, name, series):
        for line in self.admin(name, "/metrics")[1].splitlines():
            if line.rsplit(" ", 1)[0] == series:
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"{series} is not among the metrics")

    def batches(self, name):
        return sum(self.metric(name, f'pe_batches_total{{strategy="{strategy}"}}')
                   for strategy in ("sharded", "replicated"))

    def log(self, name, event):
        return [line for line in (self.dir / f"{name}.log").read_text().splitlines()
                if f" {event} " in line]

    def cards(self):
        return sorted(self.redis("queue", "hkeys", "pe:cards").split())


class Cards(Case):
    def test_a_card_is_seen_again_and_again(self):
        self.engine("e", "--register-every=1")
        card, = self.cards()
        seen = self.redis("queue", "hget", "pe:cards:seen", card)
        first = self.redis("queue", "hget", "pe:cards:first", card)
        wait_until(lambda: self.redis("queue", "hget", "pe:cards:seen", card) > seen, 5)
        self.assertEqual(self.redis("queue", "hget", "pe:cards:first", card), first)

    def test_a_card_comes_back_that_was_lost(self):
        self.engine("e", "--register-every=1", "--name=e")
        self.service()
        self.assertEqual(self.encode(["before"])[0], 200)
        before = self.cards(), self.redis("queue", "keys", "pe:tokenizer:*")
        self.redis("queue", "flushall")
        wait_until(lambda: self.cards() == before[0], 5, "the card")
        self.assertEqual(self.redis("queue", "keys", "pe:tokenizer:*"), before[1])
        # the service may have looked while there was none
        wait_until(lambda: self.encode(["after"])[0] == 200, 10, "an answer")

    def test_a_tokenizer_can_take_the_place_of_the_models_own(self):
        def tokenizer():
            card, = self.cards()
            return json.loads(self.redis("queue", "hget", "pe:cards", card))["tokenizer"]

        self.engine("own")
        own = tokenizer()
        other = self.dir / "tokenizer.json"
        other.write_text((TINY / "tokenizer.json").read_text().replace("<start_of_image>", "<x>"))
        self.redis("queue", "flushall")
        self.engine("other", f"--tokenizer={other}")
        self.assertNotEqual(tokenizer(), own)
        self.redis("queue", "flushall")
        self.engine("same", f"--tokenizer={TINY}", "--model=random:anything")
        self.assertEqual(tokenizer(), own)

    def test_what_is_computed_in_other_types_is_never_mixed(self):
        self.engine("f32", "--compute=float32")
        self.engine("bf16", "--compute=bfloat16")
        self.engine("f8", "--compute=float8")
        cards = self.cards()
        self.assertEqual([c.split(":")[0] + ":" + c.split(":")[2] for c in cards],
                         ["tiny:bfloat16", "tiny:float32", "tiny:float8"])
        self.assertEqual(len({c.split(":")[1] for c in cards}), 1)  # of the same weights
        wait_until(lambda: len(self.redis("queue", "keys", "pe:{*}:wk").split()) == 3, 5)
        self.assertEqual(sorted(self.redis("queue", "keys", "pe:{*}:wk").split()),
                         [f"pe:{{{card}}}:wk" for card in cards])
        for engine, card in zip(("bf16", "f32", "f8"), cards):
            self.assertEqual(self.redis("queue", "zcard", f"pe:{{{card}}}:wk"), "1")
            self.assertEqual(json.loads(self.redis("queue", "hget", "pe:cards", card))["compute"],
                             card.split(":")[2])


class Work(Case):
    def calls(self, function, act):
        """How often engines called it while act() ran."""
        with open(self.dir / "monitor.log", "wb") as out:
            monitor = subprocess.Popen(["redis-cli", "-s", str(self.dir / "queue.sock"), "monitor"],
                                       stdout=out)
        log = self.dir / "monitor.log"
        wait_until(lambda: b"OK" in log.read_bytes(), what="the monitor")
        try:
            act()
            self.redis("queue", "echo", "the end")
            wait_until(lambda: b"the end" in log.read_bytes(), what="the monitor's end")
        finally:
            monitor.terminate()
            monitor.wait(10)
        return sum(f'_{function}"' in line for line in log.read_text(errors="replace").splitlines()
                   if '"FCALL"' in line)

    def check_encode(self, prompts):
        status, body = self.encode(prompts)
        self.assertEqual(status, 200, body[:200])
        metadata = metadata_of(body)
        self.assertEqual(f"{metadata['model']}:{metadata['weights']}:float32", self.cards()[0])

    def test_small_results_are_completed_together(self):
        self.engine("e")
        self.service()
        n = self.calls("complete", lambda: self.check_encode([f"small {i}" for i in range(32)]))
        self.assertGreaterEqual(n, 1)
        self.assertLessEqual(n, 16)
        self.assertEqual(self.metric("e", 'pe_jobs_total{outcome="done"}'), 32)

    def test_several_results_are_stored_at_once(self):
        """One connection fills no cache: four store at once."""
        self.engine("e", STUB_STATES="3", STUB_WIDTH="100000", STUB_MS="200")
        self.service()
        for _ in range(2):
            status, body = self.encode([f"prompt {i}" for i in range(9)], cache="refresh")
            self.assertEqual(status, 200)
            stored = self.redis("cache", "client", "list").count("cmd=exec")
            self.assertEqual(stored, 4)
            self.redis("cache", "client", "kill", "type", "normal")  # it opens them again
        self.assertEqual(self.metric("e", 'pe_jobs_total{outcome="done"}'), 18)
        for i in range(9):  # each its own, whoever stored it
            ids = ids_of(body, f"p{i}.token_ids")
            states = floats_of(body, f"p{i}.hidden_states")
            self.assertEqual(states[:4], stub_numbers(ids, 0, 4))

    def test_a_large_result_waits_for_no_other(self):
        self.engine("e", STUB_STATES="64", STUB_WIDTH="1024")  # 1 MiB is 4 tokens
        self.service()
        n = self.calls("complete", lambda: self.check_encode([f"large one {i}" for i in range(4)]))
        self.assertEqual(n, 4)

    def test_a_batch_too_large_for_the_memory_is_halved_until_it_fits(self):
        self.engine("e", STUB_MEMORY="2")
        self.service()
        self.check_encode([f"one of eight {i}" for i in range(8)])
        self.assertEqual(self.metric("e", "pe_batches_halved_total"), 3)  # of 8, and twice of 4
        self.assertEqual(self.batches("e"), 4)
        self.assertEqual(self.metric("e", 'pe_jobs_total{outcome="done"}'), 8)
        self.assertEqual(self.metric("e", "pe_jobs_redelivered_total"), 0)
        self.check_encode(["fits"])  # nothing is left of it

    def test_waits_losses_and_speed_are_counted(self):
        first = self.engine("first", "--lease-ms=1000", STUB_HANG=last_id(HANG))
        self.service()
        self.check_encode(["quick"])
        self.assertEqual(self.metric("first", "pe_queue_wait_seconds_count"), 1)
        self.assertEqual(self.metric("first", "pe_jobs_redelivered_total"), 0)
        wait_until(lambda: float(self.redis("queue", "hvals",
                                            f"pe:{{{self.cards()[0]}}}:wr") or 0) > 0,
                   what="the engine's speed")  # it says so at its next claim
        self.assertEqual(self.encode([HANG], wait=0)[0], 202)
        wait_until(lambda: self.metric("first", "pe_jobs_in_hand") == 1, what="the job")
        first.send_signal(signal.SIGKILL)
        first.wait()
        self.engine("second", "--lease-ms=1000")
        self.check_encode([HANG])
        self.assertEqual(self.metric("second", "pe_jobs_redelivered_total"), 1)
        self.assertGreaterEqual(self.metric("second", "pe_queue_wait_seconds_sum"), 0.9)
        self.assertEqual(self.redis("queue", "hget", f"pe:{{{self.cards()[0]}}}:m", "lost").strip(), "1")


class Steps(Case):
    """While a batch is computed the next is claimed and the last one stored."""

    def events(self, name, event):
        return (self.dir / f"{name}.log").read_text().count(f" info {event} ")

    def depth(self, which):
        return int(self.redis("queue", "zcard", f"pe:{{{self.cards()[0]}}}:{which}"))

    def later(self, prompt, **more):
        """Submits it and does not wait."""
        self.assertEqual(self.encode([prompt], wait=0, **more)[0], 202)

    def hold_writes(self, ms=20000):
        """The cache answers whoever reads; what writes waits."""
        self.assertEqual(self.redis("cache", "client", "pause", str(ms), "write"), "OK")

    def let_writes_go(self):
        self.assertEqual(self.redis("cache", "client", "unpause"), "OK")

    def all_steps_busy(self, name, *args):
        """An engine that stores 'a', encodes 'b' and has staged 'c'."""
        engine = self.engine(name, "--redis-timeout-ms=25000", "--lease-ms=1500", *args,
                             STUB_MS="700", STUB_SLOW=last_id(SLOW))
        self.service()
        self.assertEqual(self.encode([LEARN])[0], 200)
        self.hold_writes()
        self.later("a")
        wait_until(lambda: self.events(name, "batch_encoded") == 2, what="a")
        self.later(f"b {SLOW}")
        wait_until(lambda: self.metric(name, "pe_jobs_in_hand") == 2, what="b")
        self.later("c")
        wait_until(lambda: self.metric(name, "pe_jobs_in_hand") == 3, what="c")
        self.assertEqual(self.events(name, "batch_encoded"), 2)
        self.assertEqual(self.events(name, "batch_stored"), 1)
        return engine

    def check_all(self):
        for prompt in ("a", f"b {SLOW}", "c"):
            status, body = self.encode([prompt])
            self.assertEqual(status, 200, body[:200])
            self.assertEqual(floats_of(body, "p0.hidden_states")[:8],
                             stub_numbers(ids_of(body), 0, 8))

    def test_a_batch_is_encoded_while_the_last_one_is_stored(self):
        self.engine("e", "--redis-timeout-ms=25000")
        self.service()
        self.hold_writes()
        self.later("first")
        wait_until(lambda: self.events("e", "batch_encoded") == 1, what="the first")
        self.later("second")
        wait_until(lambda: self.events("e", "batch_encoded") == 2, 5, "the second")
        self.assertEqual(self.events("e", "batch_stored"), 0)
        # results of two batches at most: a third one is left to other engines
        self.later("third")
        time.sleep(0.5)
        self.assertEqual(self.metric("e", "pe_jobs_in_hand"), 2)
        self.assertEqual(self.depth("w"), 1)
        self.let_writes_go()
        for prompt in ("first", "second", "third"):
            self.assertEqual(self.encode([prompt])[0], 200)
        wait_until(lambda: self.events("e", "batch_stored") == 3, what="the third")
        self.assertEqual(self.metric("e", "pe_stage_seconds_count"), 3)
        self.assertEqual(self.metric("e", "pe_store_batch_seconds_count"), 3)

    def test_work_is_claimed_shortly_before_the_engine_is_free(self):
        self.engine("e", STUB_MS="400", STUB_SLOW=last_id(SLOW))
        self.service()
        self.assertEqual(self.encode([LEARN])[0], 200)
        self.later(f"a {SLOW}")  # takes longer than was learned
        wait_until(lambda: self.metric("e", "pe_jobs_in_hand") == 1, what="the job")
        begin = time.monotonic()
        for prompt in ("b", "c", "d"):
            self.later(prompt)
        wait_until(lambda: self.metric("e", "pe_jobs_in_hand") > 1, what="those ahead")
        self.assertGreater(time.monotonic() - begin, 0.2)  # not at once: together
        self.assertEqual(self.metric("e", "pe_jobs_in_hand"), 4)
        self.assertEqual(self.events("e", "batch_encoded"), 1)
        self.assertEqual(self.metric("e", "pe_batches_ahead_total"), 1)
        for prompt in ("b", "c", "d"):
            self.assertEqual(self.encode([prompt])[0], 200)
        self.assertEqual(self.batches("e"), 3)

    def test_an_engine_at_work_takes_nothing_from_one_without(self):
        self.engine("e", STUB_MS="200", STUB_SLOW=last_id(SLOW))
        self.service()
        self.assertEqual(self.encode([LEARN])[0], 200)
        self.later(f"a {SLOW}")
        wait_until(lambda: self.metric("e", "pe_jobs_in_hand") == 1, what="the job")
        # another one sleeps at the doorbell, takes the ring and is about to claim
        self.start("other", "redis-cli", "-s", self.dir / "queue.sock", "blpop",
                   f"pe:{{{self.cards()[0]}}}:bell", "10")
        wait_until(lambda: "cmd=blpop" in self.redis("queue", "client", "list"), what="the other")
        self.later("b")
        time.sleep(0.6)  # 'a' was expected to end meanwhile
        self.assertEqual(self.metric("e", "pe_jobs_in_hand"), 1)
        self.assertEqual((self.events("e", "batch_encoded"), self.depth("w")), (1, 1))
        self.assertEqual(self.encode(["b"])[0], 200)

    def test_a_solo_job_has_nothing_beside_it(self):
        first = self.engine("first")
        self.service()
        self.assertEqual(self.encode(["before"])[0], 200)
        first.terminate()
        first.wait(30)
        before = set(self.redis("queue", "keys", "pe:{*}:j:*").split())
        self.later("suspect")
        job, = set(self.redis("queue", "keys", "pe:{*}:j:*").split()) - before
        self.redis("queue", "hset", job, "solo", "1")
        self.hold_writes()
        self.later("after")
        # what is stored is beside it, too
        self.engine("e", "--redis-timeout-ms=25000")
        wait_until(lambda: self.events("e", "batch_encoded") == 1, what="the suspect")
        time.sleep(0.5)
        self.assertEqual(self.metric("e", "pe_jobs_in_hand"), 1)
        self.later("one more")
        self.let_writes_go()
        for prompt in ("suspect", "after", "one more"):
            self.assertEqual(self.encode([prompt])[0], 200)

    def test_a_solo_job_is_given_back_until_nothing_is_in_hand(self):
        self.engine("e", "--redis-timeout-ms=25000", "--probe-every=3600")
        self.service()
        self.hold_writes()
        self.later("first")
        wait_until(lambda: self.events("e", "batch_encoded") == 1, what="the first")
        base = f"pe:{{{self.cards()[0]}}}"
        claims = int(self.redis("queue", "hget", f"{base}:m", "claims"))
        # as submit() leaves it, but solo from its first moment on
        payload = self.redis("queue", "hget", self.redis("queue", "keys", f"{base}:j:*"), "payload")
        self.redis("queue", "eval", """
            redis.call('HSET', KEYS[1] .. ':j:suspect', 'tenant', 'x', 'group', 'ffffffffffff',
                       'tag', 0, 'tokens', 3, 'payload', ARGV[1], 'deadline', 0, 'enqueued', 0,
                       'attempt', 0, 'lost', 2, 'interest', 1, 'solo', 1, 'state', 'waiting')
            redis.call('ZADD', KEYS[1] .. ':w', 0, 'ffffffffffffsuspect')
            redis.call('HINCRBY', KEYS[1] .. ':m', 'tokens', 3)
            redis.call('HINCRBY', KEYS[1] .. ':tc', 'x', 1)
            redis.call('RPUSH', KEYS[1] .. ':bell', '1')""", "1", base, payload)
        wait_until(lambda: int(self.redis("queue", "hget", f"{base}:m", "claims")) > claims, 5,
                   "its claim")
        time.sleep(0.5)
        self.assertEqual(self.metric("e", "pe_jobs_in_hand"), 1)
        self.assertEqual(self.events("e", "batch_encoded"), 1)
        self.assertEqual(self.redis("queue", "hmget", f"{base}:j:suspect", "state",
                                    "attempt").split(), ["waiting", "0"])
        self.let_writes_go()
        wait_until(lambda: self.redis("queue", "hget", f"{base}:j:suspect", "state") == "done", 5,
                   "the suspect")

    def test_an_engine_that_is_killed_at_all_steps_loses_nothing(self):
        engine = self.all_steps_busy("first")
        engine.kill()
        engine.wait()
        self.let_writes_go()
        self.engine("second", "--lease-ms=1500")
        self.check_all()
        self.assertEqual(self.metric("second", "pe_jobs_redelivered_total"), 3)

    def test_the_leases_of_all_steps_are_renewed(self):
        self.all_steps_busy("e")
        self.engine("other", "--lease-ms=1500", "--probe-every=3600")
        time.sleep(4)  # the other's sweeps would have found a lease that ended
        self.assertEqual(self.metric("other", "pe_jobs_redelivered_total"), 0)
        self.let_writes_go()
        self.check_all()
        self.assertEqual(self.metric("e", 'pe_jobs_total{outcome="done"}'), 4)
        self.assertEqual(self.metric("e", 'pe_jobs_total{outcome="stale"}'), 0)

    def test_a_drain_finishes_all_steps(self):
        engine = self.all_steps_busy("e")
        engine.terminate()
        time.sleep(0.3)
        self.later("d")  # is nobody's
        self.let_writes_go()
        self.assertEqual(engine.wait(30), 0)
        self.assertEqual(self.events("e", "batch_stored"), 4)
        self.assertEqual((self.depth("l"), self.depth("w")), (0, 1))
        self.check_all()  # of the cache

    def test_an_engine_that_stops_claims_nothing_more(self):
        engine = self.engine("e")
        self.service()
        time.sleep(0.2)  # it sleeps at the doorbell
        engine.terminate()
        time.sleep(0.1)
        self.later("too late")
        self.assertEqual(engine.wait(10), 0)
        self.assertEqual((self.depth("l"), self.depth("w")), (0, 1))
        self.assertEqual(self.events("e", "batch_encoded"), 0)

    def test_a_drain_that_takes_too_long_gives_back_all_steps(self):
        engine = self.all_steps_busy("e", "--grace=0")
        engine.terminate()
        self.assertEqual(engine.wait(30), 1)
        self.assertEqual((self.depth("l"), self.depth("w")), (0, 3))
        self.let_writes_go()
        self.engine("second")
        self.check_all()
        self.assertEqual(self.metric("second", "pe_jobs_redelivered_total"), 0)

    def test_a_step_that_hangs_ends_the_engine(self):
        self.service_started = False
        for step, layers, env in (("stage", [0], {"STUB_CHECK_HANG": last_id(HANG)}),
                                  ("encode", [1], {"STUB_HANG": last_id(HANG)}),
                                  ("store", [0, 1], {"STUB_FREE_HANG": "2"})):
            with self.subTest(step):
                engine = self.engine(step, "--hang=2", "--redis-timeout-ms=1000",
                                     "--lease-ms=1000", **env)
                if not self.service_started:
                    self.service()
                    self.service_started = True
                time.sleep(3)  # to rest is not to hang
                self.assertIsNone(engine.poll())
                self.later(f"{step} {HANG}", layers=layers)
                self.assertEqual(engine.wait(15), 1)
                self.assertIn(f"engine_hangs step={step} ", (self.dir / f"{step}.log").read_text())
                healthy = self.engine(f"after-{step}", "--lease-ms=1000")
                self.assertEqual(self.encode([f"{step} {HANG}"], layers=layers)[0], 200)
                healthy.terminate()
                healthy.wait(30)

    def test_a_device_that_fails_leaves_all_else_to_others(self):
        engine = self.engine("e", STUB_MS="200", STUB_SLOW=last_id(SLOW),
                             STUB_BROKEN=last_id(BROKEN))
        self.service()
        self.assertEqual(self.encode([LEARN])[0], 200)
        self.later(f"b {SLOW} {BROKEN}")
        wait_until(lambda: self.metric("e", "pe_jobs_in_hand") == 1, what="b")
        self.later("c")
        wait_until(lambda: self.metric("e", "pe_jobs_in_hand") == 2, what="c")
        self.assertEqual(engine.wait(10), 1)
        # what was staged goes back, the attempt not counted; the device failed on the other one
        self.assertEqual((self.depth("l"), self.depth("w")), (1, 1))
        self.engine("second")
        self.assertEqual(self.encode(["c"])[0], 200)
        self.assertEqual(self.metric("second", "pe_jobs_redelivered_total"), 0)

    def test_without_a_cache_nothing_staged_is_encoded(self):
        engine = self.all_steps_busy("e", "--redis-timeout-ms=1000")
        self.processes[1].send_signal(signal.SIGSTOP)
        # when 'b' is encoded, 'a' could not be stored: 'c' is not begun
        wait_until(lambda: self.metric("e", "pe_jobs_in_hand") == 0, what="their return")
        self.assertEqual(self.batches("e"), 3)
        self.assertEqual(self.metric("e", 'pe_jobs_total{outcome="released"}'), 3)
        self.assertEqual(self.depth("w"), 3)
        self.assertIsNone(engine.poll())
        self.processes[1].send_signal(signal.SIGCONT)
        self.let_writes_go()
        self.check_all()
        self.assertEqual(self.metric("e", "pe_jobs_redelivered_total"), 0)


class Routes(Case):
    def encode_timed(self, prompts):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/v1/encode", json.dumps(
            {"prompts": prompts, "dtype": "float32", "output": "hidden_states"}),
            {"Content-Type": "application/json", "Prefer": "wait=30"})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        self.assertEqual(answer.status, 200, body[:200])
        return answer.headers, metadata_of(body)

    def test_how_a_batch_was_shared_is_seen(self):
        self.engine("e", "--ranks=3", "--strategy=sharded", STUB_PREDICTED="8")
        self.service()
        ratio = 'pe_batch_real_by_predicted_ratio{strategy="%s"}'
        headers, metadata = self.encode_timed(["alone"])
        self.assertIn('encode;dur=', headers["server-timing"])
        self.assertIn(';desc="sharded over 3, one_prompt, took 7.0 ms"', headers["server-timing"])
        self.assertNotIn("one_prompt", json.dumps(metadata) + headers["etag"])
        headers, _ = self.encode_timed(["one of two", "two of two"])
        self.assertIn(';desc="replicated over 2, a_prompt_a_rank, predicted 8.0 ms, took 4.0 ms"',
                      headers["server-timing"])
        headers, _ = self.encode_timed(["alone", "one of two"])
        self.assertNotIn("desc", headers["server-timing"])  # hits: nothing was computed
        self.assertEqual(headers["x-cache"], "hit")
        lines = self.log("e", "batch_encoded")
        self.assertIn(" jobs=1 tokens=3 strategy=sharded reason=one_prompt ranks=3 "
                      "predicted_ms=0.0 ms=", lines[0])
        self.assertIn(" strategy=replicated reason=a_prompt_a_rank ranks=2 predicted_ms=8.0 ",
                      lines[1])
        for strategy in ("sharded", "replicated"):
            self.assertEqual(self.metric("e", f'pe_batches_total{{strategy="{strategy}"}}'), 1)
        self.assertEqual(self.metric("e", ratio % "replicated"), 0.5)
        self.assertNotIn(ratio % "sharded", self.admin("e", "/metrics")[1])
        self.assertIn(" ranks=3 strategy=sharded ", self.log("e", "ready")[0])
        self.assertIn(" ranks=3", self.log("e", "model_loaded")[0])

    def test_a_batch_has_so_much_for_each_rank(self):
        self.engine("e", "--ranks=3", "--batch-jobs=2", STUB_MS="100")
        self.service()
        self.assertEqual(self.encode([f"one of six {i}" for i in range(6)])[0], 200)
        self.assertEqual(self.batches("e"), 1)
        self.assertEqual(self.encode([f"one of seven {i}" for i in range(7)])[0], 200)
        self.assertEqual(self.batches("e"), 3)

    def test_a_batch_has_so_many_tokens_for_each_rank(self):
        self.engine("e", "--ranks=2", "--batch-tokens=20", STUB_MS="100")
        self.service()
        ten = "a a a a a a a a a"
        self.assertEqual(self.encode([f"{ten} {c}" for c in "bcd"])[0], 200)  # 33 tokens
        self.assertEqual(self.batches("e"), 1)

    def test_no_batch_is_larger_than_a_claim(self):
        self.engine("e", "--ranks=8", "--batch-jobs=64")
        self.service()
        self.assertEqual(self.encode(["a few"])[0], 200)


class Levels(Case):
    def test_jobs_of_all_levels_in_one_batch(self):
        self.engine("e", STUB_VIDEO="6", STUB_AUDIO="4", STUB_MS="300")
        self.service()
        card = json.loads(self.redis("queue", "hget", "pe:cards", self.cards()[0]))
        self.assertEqual([card[k] for k in ("extractor", "rows", "video_width", "audio_width",
                                            "ltx_version")], [2, 1024, 6, 4, "2.3.0"])
        wanted = ({"output": "features", "modalities": ["video"]}, {"output": "hidden_states"},
                  {"output": "embeddings"}, {"output": "embeddings", "modalities": ["audio"]},
                  {"output": "features"})
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            first = pool.submit(self.encode, ["goes first"])  # the others meet in the queue
            time.sleep(0.1)
            answers = list(pool.map(lambda more: self.encode(["a prompt"], **more), wanted))
            self.assertEqual(first.result()[0], 200)
        self.assertEqual(self.batches("e"), 2)
        for more, (status, body) in zip(wanted, answers):
            self.assertEqual(status, 200, body[:200])
            ids, metadata = ids_of(body), metadata_of(body)
            self.assertEqual(metadata["output"], more["output"])
            if more["output"] == "hidden_states":
                self.assertEqual(floats_of(body, "p0.hidden_states")[:8], stub_numbers(ids, 0, 8))
                continue
            self.assertEqual((metadata["extractor"], metadata["ltx_version"]), ("v2", "2.3.0"))
            suffix = "" if more["output"] == "embeddings" else "_features"
            rows = 1024 if more["output"] == "embeddings" else len(ids) // 4
            for m, (name, width) in enumerate((("video", 6), ("audio", 4))):
                self.assertEqual(name in more.get("modalities", metadata["modalities"].split(",")),
                                 name in metadata["modalities"])
                if name in metadata["modalities"]:
                    self.assertEqual(floats_of(body, f"p0.{name}{suffix}"),
                                     stub_numbers(ids, 1000 + m, rows * width))

    def test_an_output_that_it_does_not_have_is_refused(self):
        """Whatever a card said: the engine itself looks."""
        self.engine("e", "--register-every=60")
        self.service()
        field, = self.cards()
        card = json.loads(self.redis("queue", "hget", "pe:cards", field))
        self.redis("queue", "hset", "pe:cards", field, json.dumps(
            {**card, "extractor": 1, "rows": 1024, "video_width": 8}))
        wait_until(lambda: self.encode(["x"], output="embeddings")[0] == 502, what="the lie")
        self.assertEqual(self.encode(["x"])[0], 200)


class Health(Case):
    def test_a_queue_that_is_away_is_said_once(self):
        self.engine("engine")
        queue = self.processes[0]
        queue.kill()
        queue.wait()
        wait_until(lambda: self.metric("engine", 'pe_redis_errors_total{role="queue"}') > 4)
        self.start("queue", "redis-server", "--port", "0", "--unixsocket", self.dir / "queue.sock",
                   "--dir", self.dir / "queue", "--save", "", "--appendonly", "yes")
        log = self.dir / "engine.log"
        wait_until(lambda: "queue_back" in log.read_text())
        self.assertEqual(log.read_text().count("warn queue_"), 1)

    def test_the_last_proof_is_shown(self):
        sick = self.dir / "sick"
        self.engine("e", "--probe-every=1", STUB_SICK=str(sick))
        self.assertRegex(self.admin("e", "/readyz")[1],
                         r"ready; the last forward pass was good, \d s ago")
        sick.write_text("")
        wait_until(lambda: self.admin("e", "/readyz")[0] == 503, 10, "the failed proof")
        self.assertRegex(self.admin("e", "/readyz")[1], r"the last forward pass failed, \d s ago")
        self.assertEqual(self.admin("e", "/livez")[0], 200)
        sick.unlink()
        wait_until(lambda: self.admin("e", "/readyz")[0] == 200, 10, "the good proof")


class Sleep(Case):
    def residence(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/v1/models")
        model, = json.loads(connection.getresponse().read())["models"]
        connection.close()
        return model["residence"]

    def is_asleep(self):
        return self.admin("e", "/readyz") == (200, "ready; asleep\n")

    def test_it_sleeps_without_work_and_wakes_for_some(self):
        self.engine("e", "--sleep-after=2", "--probe-every=1")
        self.service()
        self.assertEqual(self.encode(["one"])[0], 200)
        self.assertEqual(self.metric("e", "pe_engine_asleep"), 0)
        self.assertEqual(self.residence(), "awake")
        wait_until(self.is_asleep, 10, "the sleep")
        self.assertEqual(self.metric("e", "pe_engine_asleep"), 1)
        wait_until(lambda: self.residence() == "asleep", 10, "the card")
        time.sleep(2.5)  # longer than from one probe to the next
        self.assertTrue(self.is_asleep())
        self.assertEqual(self.metric("e", "pe_wake_seconds_count"), 0)

        self.assertEqual(self.encode(["two"])[0], 200)
        self.assertEqual(self.metric("e", "pe_wake_seconds_count"), 1)
        self.assertEqual(self.metric("e", "pe_wake_seconds_sum"), 0.25)
        self.assertEqual(self.metric("e", "pe_engine_asleep"), 0)
        self.assertRegex(self.admin("e", "/readyz")[1], "ready; the last forward pass was good")
        wait_until(lambda: self.residence() == "awake", 10, "the card")
        wait_until(self.is_asleep, 10, "the next sleep")

    def test_it_never_sleeps_unasked(self):
        self.engine("e")
        time.sleep(3)
        self.assertEqual(self.metric("e", "pe_engine_asleep"), 0)

    def test_work_waits_while_others_have_the_memory(self):
        full = self.dir / "full"
        self.engine("e", "--sleep-after=1", STUB_FULL=str(full))
        self.service()
        wait_until(self.is_asleep, 10, "the sleep")
        full.write_text("")
        status, body = self.encode(["one"], wait=0)
        self.assertEqual(status, 202)
        wait_until(lambda: "wake_failed" in (self.dir / "e.log").read_text(), 5)
        full.unlink()
        self.assertEqual(self.encode(["one"])[0], 200)
        self.assertEqual(self.metric("e", "pe_wake_seconds_count"), 1)
        self.assertEqual(self.metric("e", 'pe_jobs_total{outcome="failed"}'), 0)


if __name__ == "__main__":
    if shutil.which("redis-server") is None:
        print("SKIPPED: no redis-server")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
