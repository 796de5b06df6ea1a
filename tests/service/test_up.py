#!/usr/bin/env python3
"""`prompt-encoder up` as a user runs it: real Redis, real engine, real service.

    test_up.py PROMPT_ENCODER TESTS_DIR SCRATCH_DIR [unittest's arguments]

Standard library only. Exit 77 where there is no redis-server.
"""
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

PROGRAM, TESTS, SCRATCH = (pathlib.Path(a).resolve() for a in sys.argv[1:4])
TINY = TESTS / "golden/gemma3-tiny"
LTX, LTX4 = (TESTS / f"golden/ltx-tiny-{name}.safetensors" for name in ("v2", "v2-gemma4"))
os.environ["XDG_CACHE_HOME"] = str(SCRATCH / "cache")  # where digests are kept
PROMPTS = json.loads((TESTS / "golden/prompts.json").read_text())


def processes_of(state):
    """Pids of everything that was started for this state folder, ourselves left out."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:
            continue
        if str(state) in line and " up " not in line:
            found[int(entry.name)] = line
    return found


class Up(unittest.TestCase):
    def setUp(self):
        # a short path: sockets lie in it
        self.state = pathlib.Path(tempfile.mkdtemp(prefix="pe up,", dir="/tmp"))  # with what needs an escape
        self.process = None

    def tearDown(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)
        shutil.rmtree(self.state, ignore_errors=True)

    def start(self, *args, program=PROGRAM, **env):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PE_")} | env
        self.process = subprocess.Popen(
            [program, "up", "--model", TINY, "--listen", "127.0.0.1:0", "--state", self.state,
             *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean)
        line = self.process.stdout.readline()
        self.assertRegex(line, r"^ready http://127\.0\.0\.1:\d+\n$",
                         "" if line else self.process.stderr.read())
        return line.split()[1]

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.assertEqual(self.process.wait(60), 0)
        self.process.stdout.close()
        self.process.stderr.close()
        self.assertEqual(processes_of(self.state), {})
        for log in self.state.glob("*.log"):  # what a sanitizer had to say of a child
            text = log.read_text(errors="replace")
            self.assertNotIn("Sanitizer", text)
            self.assertNotIn("runtime error", text)

    def ask(self, url, body=None, **headers):
        request = urllib.request.Request(
            url, data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", **headers})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers, answer.read()

    def test_http_answers_what_encode_writes(self):
        self.compare_with_encode()

    def test_http_answers_what_encode_writes_under_another_name(self):
        self.compare_with_encode("--model-id", "another")

    def test_http_answers_what_encode_writes_at_every_level(self):
        url = self.start("--ltx", LTX)
        out = self.state / "encoded.safetensors"
        for level, more, flags in ((None, {}, ()), ("features", {}, ()),
                                   ("embeddings", {"modalities": ["audio"]},
                                    ("--modalities", "audio")),
                                   ("features", {"modalities": ["audio", "video"]}, ()),
                                   ("hidden_states", {"layers": [7, 0]}, ("--layers", "7,0"))):
            for dtype in ("bfloat16", "float32"):
                body = {"prompts": PROMPTS[2:6], "dtype": dtype, **more}
                if level is not None:
                    body["output"] = level
                    flags = ("--output", level, *flags[-2:])
                subprocess.run([PROGRAM, "encode", "--model", TINY, "--ltx", LTX, "--dtype", dtype,
                                *flags, "-o", out, *PROMPTS[2:6]], check=True, capture_output=True)
                status, headers, answer = self.ask(url + "/v1/encode", body)
                self.assertEqual((status, headers["Content-Type"]),
                                 (200, "application/safetensors"))
                self.assertEqual(answer, out.read_bytes())
                again = self.ask(url + "/v1/encode", body)
                self.assertEqual((again[1]["X-Cache"], again[2]), ("hit", answer))
        model, = json.loads(self.ask(url + "/v1/models")[2])["models"]
        self.assertEqual(model["outputs"]["embeddings"]["rows"], 1024)
        self.assertEqual(model["outputs"]["embeddings"]["audio_width"], 64)
        self.check_engine_refuses(LTX4, "ltx-tiny-v2-gemma4.safetensors needs a Gemma of "
                                        "gemma_version gemma4-12b-ltx-v1, but this one is a gemma3 "
                                        "without a gemma_version")
        self.check_engine_refuses(self.with_huge_weights(), "engine: a forward pass of <bos> gives "
                                                            "no numbers: prompt 0: a NaN in its "
                                                            "audio: the weights are too large, or "
                                                            "damaged")
        self.check_engine_refuses(LTX, "engine: a forward pass of <bos> gives no numbers: prompt 0: "
                                       "a NaN in its video: model.safetensors: language_model.model."
                                       "layers.2.mlp.down_proj.weight holds a NaN or an infinity",
                                  self.with_a_nan())
        self.stop()

    def with_huge_weights(self):
        """All of them finite, but not what a connector makes of them."""
        data = bytearray(LTX.read_bytes())
        length, = struct.unpack("<Q", data[:8])
        begin, end = json.loads(data[8:8 + length])[
            "model.diffusion_model.audio_embeddings_connector.transformer_1d_blocks.1.attn1."
            "to_out.0.weight"]["data_offsets"]
        data[8 + length + begin:8 + length + end] = b"\x7f\x7f" * ((end - begin) // 2)
        path = self.state / "huge.safetensors"
        path.write_bytes(data)
        return path

    def with_a_nan(self):
        """A Gemma of which one number is none."""
        folder = self.state / "nan"
        shutil.copytree(TINY, folder)
        data = bytearray((folder / "model.safetensors").read_bytes())
        length, = struct.unpack("<Q", data[:8])
        at = 8 + length + json.loads(data[8:8 + length])[
            "language_model.model.layers.2.mlp.down_proj.weight"]["data_offsets"][0]
        data[at:at + 2] = b"\xc0\x7f"
        (folder / "model.safetensors").write_bytes(data)
        return folder

    def check_engine_refuses(self, ltx, sentence, model=TINY):
        """One that is started beside ours."""
        state = str(self.state).replace(" ", "%20").replace(",", "%2C")
        result = subprocess.run(
            [PROGRAM.parent / "prompt-encoder-engine", "--model", model, "--ltx", ltx,
             *(f"--redis-{name}=unix:{state}/{name}.sock" for name in ("queue", "cache")),
             "--admin-listen=127.0.0.1:0"], capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 1)
        self.assertEqual([line for line in result.stderr.splitlines()
                          if line.startswith("prompt-encoder-engine: ")],
                         [f"prompt-encoder-engine: {sentence}"])

    def test_a_checkpoint_that_is_none(self):
        broken = self.state / "broken.safetensors"
        broken.write_bytes(LTX.read_bytes()[:-1])
        result = subprocess.run([PROGRAM, "up", "--model", TINY, "--ltx", broken, "--listen",
                                 "127.0.0.1:0", "--state", self.state], capture_output=True,
                                text=True, timeout=60)
        self.assertEqual(result.returncode, 1)
        self.assertIn("the engine ended before all was ready: prompt-encoder-engine: "
                      "broken.safetensors: ", result.stderr)
        self.assertEqual(processes_of(self.state), {})

    def compare_with_encode(self, *name):
        url = self.start(*name)
        out = self.state / "encoded.safetensors"
        for dtype in ("bfloat16", "float32"):
            subprocess.run([PROGRAM, "encode", "--model", TINY, "--dtype", dtype, "-o", out, *name,
                            *PROMPTS[2:8]], check=True, capture_output=True)
            status, headers, body = self.ask(url + "/v1/encode",
                                             {"prompts": PROMPTS[2:8], "dtype": dtype,
                                              "output": "hidden_states"})
            self.assertEqual((status, headers["Content-Type"], headers["X-Cache"]),
                             (200, "application/safetensors", "miss"))
            self.assertEqual(body, out.read_bytes())
            status, headers, again = self.ask(url + "/v1/encode",
                                              {"prompts": PROMPTS[2:8], "dtype": dtype,
                                               "output": "hidden_states"})
            self.assertEqual((status, headers["X-Cache"]), (200, "hit"))
            self.assertEqual(again, body)
        self.stop()

    def test_what_dies_is_started_again(self):
        url = self.start()
        for round_, name in enumerate(("engine", "service", "queue.sock", "cache.sock", "engine")):
            pids = [pid for pid, line in processes_of(self.state).items()
                    if (f"prompt-encoder-{name} " in line or f"/{name}" in line.split("--dir")[0]
                        and "redis-server" in line)]
            self.assertEqual(len(pids), 1, processes_of(self.state))
            os.kill(pids[0], signal.SIGKILL)
            for _ in range(200):
                try:
                    status, _, _ = self.ask(url + "/v1/encode",
                                            {"prompt": f"after {round_}",
                                             "output": "hidden_states"})
                    if status == 200:
                        break
                except (urllib.error.URLError, ConnectionError):
                    pass
                time.sleep(0.2)
            else:
                self.fail(f"no answer after the {name} was killed")
        self.stop()

    def test_ranks_are_the_engines(self):
        self.start("--ranks=2", "--strategy=sharded", "--rank-deadline=7")
        line, = [line for line in processes_of(self.state).values()
                 if "prompt-encoder-engine " in line]
        for flag in ("--ranks=2", "--strategy=sharded", "--rank-deadline=7"):
            self.assertIn(f" {flag} ", line)
        self.assertIn(" ranks=2 strategy=sharded ", (self.state / "engine.log").read_text())
        self.stop()

    def test_a_gpu_that_fails_again_is_left_out(self):
        programs, arm = self.state / "bin", self.state / "arm"
        programs.mkdir()  # up takes what lies beside it: an engine whose second GPU will fail
        shutil.copy(PROGRAM, programs)
        (programs / "prompt-encoder-engine").symlink_to(PROGRAM.with_name("faulty_engine"))
        (programs / "prompt-encoder-service").symlink_to(PROGRAM.with_name("prompt-encoder-service"))
        url = self.start("--ranks=2", "--strategy=sharded", program=programs / PROGRAM.name,
                         FAULT_GPUS="2", FAULT_RANK="1", FAULT_OP="attention", FAULT_KIND="gpu",
                         FAULT_ARM=str(arm))
        arm.touch()
        status, _, _ = self.ask(url + "/v1/encode", {"prompt": "a fox", "output": "hidden_states"},
                                Prefer="wait=60")
        self.assertEqual(status, 200)
        log = (self.state / "engine.log").read_text()
        self.assertEqual(log.count(" error rank_failed rank=1 device=GPU-fake-1 "), 2, log)
        file = self.state / "failed-gpus"
        self.assertIn(f" warn gpu_left_out gpu=GPU-fake-1 file={file} ", log)
        self.assertEqual(file.read_text().count(" GPU-fake-1 "), 2)
        self.stop()

    def admin_urls(self):
        """As `up` says them on stderr when it is ready."""
        found = {}
        while len(found) < 2:
            line = self.process.stderr.readline()
            self.assertNotEqual(line, "")
            if "metrics http://" in line:
                found[line.split()[0]] = line.split()[-1].removesuffix("/metrics")
        return found

    def test_the_admin_pages_stay_where_they_are(self):
        self.start()
        urls = self.admin_urls()
        for name in ("engine", "service"):
            self.assertEqual(self.ask(urls[name] + "/livez")[0], 200)
            pid, = [pid for pid, line in processes_of(self.state).items()
                    if f"prompt-encoder-{name} " in line]
            os.kill(pid, signal.SIGKILL)
            for _ in range(200):
                time.sleep(0.1)
                try:
                    if pid not in processes_of(self.state) and \
                            self.ask(urls[name] + "/livez")[0] == 200:
                        break
                except (urllib.error.URLError, ConnectionError):
                    pass
            else:
                self.fail(f"the {name}'s admin page is not back at {urls[name]}")
        self.stop()

    def test_logs_are_rotated(self):
        (self.state / "engine.log").write_text("of the run before\n")
        self.start()
        self.assertEqual((self.state / "engine.log.1").read_text(), "of the run before\n")
        self.assertRegex((self.state / "engine.log").read_text(), r"info model_loaded mb=[1-9]\d* "
                         r"seconds=[\d.]+ gb_per_s=[\d.]+ resident_mb=[1-9]\d* ranks=1 residency=replicated shard_by=-\n")
        log, older = self.state / "service.log", self.state / "service.log.1"
        with open(log, "a") as f:  # as if the service had said much
            f.write("x" * (9 << 20))
        for _ in range(300):
            if older.exists() and log.stat().st_size < 1 << 20:
                break
            time.sleep(0.1)
        self.assertGreaterEqual(older.stat().st_size, 9 << 20)
        self.assertLess(log.stat().st_size, 1 << 20)
        self.stop()

    def test_accepted_work_outlives_it(self):
        url = self.start()
        status, headers, _ = self.ask(url + "/v1/encode",
                                      {"prompt": "kept", "output": "hidden_states"},
                                      Prefer="respond-async")
        self.assertEqual(status, 202)
        job = headers["Location"]
        self.stop()
        url = self.start()
        for _ in range(100):
            status, _, body = self.ask(url + job)
            state = json.loads(body)["jobs"][0]["state"]
            if state == "done":
                break
            time.sleep(0.1)
        self.assertEqual(state, "done")
        self.stop()

    def test_one_state_folder_one_up(self):
        self.start()
        second = subprocess.run([PROGRAM, "up", "--model", TINY, "--state", self.state],
                                capture_output=True, text=True, timeout=60)
        self.assertEqual(second.returncode, 1)
        self.assertIn("another 'prompt-encoder up' uses it", second.stderr)
        self.stop()

    def test_a_model_that_is_none(self):
        result = subprocess.run([PROGRAM, "up", "--model", TESTS, "--listen", "127.0.0.1:0",
                                 "--state", self.state], capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 1)
        self.assertIn("the engine ended before all was ready: ", result.stderr)
        self.assertIn("config.json", result.stderr)
        self.assertEqual(processes_of(self.state), {})

    def test_an_address_that_others_reach(self):
        result = subprocess.run([PROGRAM, "up", "--model", TINY, "--listen", "0.0.0.0:0", "--state",
                                 self.state], capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 1)
        self.assertIn("other machines", result.stderr)
        self.assertFalse((self.state / "engine.log").exists())

    def start_loading(self):
        """`up` with a model that never ends to load: its tokenizer is a pipe that nobody fills."""
        model = self.state / "model"
        model.mkdir()
        for name in ("config.json", "model.safetensors"):
            (model / name).symlink_to(TINY / name)
        os.mkfifo(model / "tokenizer.json")
        self.process = subprocess.Popen(
            [PROGRAM, "up", "--model", model, "--listen", "127.0.0.1:0", "--state", self.state],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return self.wait_for_process("prompt-encoder-engine ")

    def wait_for_process(self, words):
        for _ in range(300):
            for pid, line in processes_of(self.state).items():
                if re.search(words, line):
                    return pid
            time.sleep(0.1)
        self.fail(f"no process of {words}")

    def end(self, seconds):
        """What it says on stderr, once it has ended."""
        start = time.monotonic()
        _, said = self.process.communicate(timeout=60)
        self.assertLess(time.monotonic() - start, seconds)
        self.assertEqual(processes_of(self.state), {})
        return said

    def test_ctrl_c_while_the_model_loads(self):
        self.start_loading()
        time.sleep(0.5)
        self.process.send_signal(signal.SIGINT)
        self.end(10)
        self.assertEqual(self.process.returncode, 0)

    def test_a_queue_that_ends_while_the_model_loads(self):
        self.start_loading()
        os.kill(self.wait_for_process(r"redis-server.*queue\.sock"), signal.SIGKILL)
        self.assertIn("the queue ended before", self.end(20))
        self.assertEqual(self.process.returncode, 1)

    def test_it_says_how_a_child_ended(self):
        self.start()
        os.kill(self.wait_for_process("prompt-encoder-service "), signal.SIGKILL)
        for line in self.process.stderr:
            if "started again" in line:
                break
        self.assertEqual(line, "the service ended and is started again: signal 9 (Killed)\n")
        self.stop()

    def test_the_state_is_free_once_its_redis_has_ended(self):
        """Killed and started again at once, two of them must never write one queue's file."""
        self.start()
        lock = self.state.resolve() / "lock"
        holders = [line.split()[0] for pid, line in processes_of(self.state).items()
                   if any(os.readlink(fd) == str(lock)
                          for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir())]
        self.assertEqual(holders, ["redis-server", "redis-server"])
        self.process.kill()
        self.process.communicate(timeout=60)
        self.start()
        self.stop()

    def test_a_port_in_use(self):
        url = self.start()
        other = pathlib.Path(tempfile.mkdtemp(prefix="pe-up-", dir="/tmp"))
        result = subprocess.run([PROGRAM, "up", "--model", TINY, "--listen",
                                 url.removeprefix("http://"), "--state", other],
                                capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 1)
        self.assertIn("Address already in use", result.stderr)
        self.assertFalse((other / "engine.log").exists())  # known before the model is loaded
        self.assertEqual(processes_of(other), {})
        shutil.rmtree(other)
        self.stop()


if __name__ == "__main__":
    if shutil.which("redis-server") is None:
        print("SKIPPED: no redis-server")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
