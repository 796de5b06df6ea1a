#!/usr/bin/env python3
"""`prompt-encoder models`: what is listed of a queue, and what is removed.

    test_cli_models.py PROMPT_ENCODER FAKE_ENGINE TESTS_DIR SCRATCH_DIR

Standard library only; exit 77 where there is no redis-server.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM, ENGINE, TESTS = (pathlib.Path(a).resolve() for a in sys.argv[1:4])
A, B = "ab" * 32, "ac" * 32


class Models(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="pe-models-", dir="/tmp"))
        self.url = f"unix:{self.dir}/redis.sock"
        self.server = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", self.dir / "redis.sock", "--dir",
             self.dir, "--save", ""], stdout=subprocess.DEVNULL)
        end = time.monotonic() + 20
        while self.redis("ping") != "PONG" and time.monotonic() < end:
            time.sleep(0.02)

    def tearDown(self):
        self.server.terminate()
        self.server.wait(20)
        shutil.rmtree(self.dir)

    def redis(self, *words):
        return subprocess.run(["redis-cli", "-s", str(self.dir / "redis.sock"), *words],
                              capture_output=True, text=True).stdout.strip()

    def card(self, id, weights, compute="float32", age_s=0, more=()):
        subprocess.run([ENGINE, f"--redis-queue={self.url}", f"--redis-cache={self.url}",
                        f"--tokenizer={TESTS}/golden/gemma3-tiny/tokenizer.json",
                        f"--model-id={id}", f"--weights={weights}", f"--compute={compute}",
                        "--only-register", *more], check=True, capture_output=True)
        if age_s > 0:  # as if its engine had been gone for so long
            name = f"{id}:{weights}:{compute}"
            seen = int(self.redis("hget", "pe:cards:seen", name))
            self.redis("hset", "pe:cards:seen", name, str(seen - 1000 * age_s))

    def run_models(self, *args):
        env = {k: v for k, v in os.environ.items() if not k.startswith("PE_")}
        return subprocess.run([PROGRAM, "models", f"--redis-queue={self.url}", *args],
                              capture_output=True, text=True, env=env, timeout=60)

    def good(self, *args):
        result = self.run_models(*args)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def bad(self, words, *args):
        before = self.redis("hkeys", "pe:cards")
        result = self.run_models(*args)
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn(words, result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertEqual(self.redis("hkeys", "pe:cards"), before)

    def test_nothing_is_listed_of_nothing(self):
        self.assertEqual(self.good(), "no models: no engine has registered one\n")

    def test_cards_are_listed(self):
        self.card("tiny", A)
        self.card("tiny", A, "bfloat16", 3 * 3600)
        self.card("a-longer-name", B, age_s=200)
        head, *lines = self.good().splitlines()
        self.assertEqual(head.split(), ["MODEL", "WEIGHTS", "COMPUTE", "OUTPUTS", "SEEN",
                                        "ENGINES", "JOBS"])
        self.assertEqual([line.split()[:3] for line in lines],
                         [["tiny", A[:12], "float32"], ["a-longer-name", B[:12], "float32"],
                          ["tiny", A[:12], "bfloat16"]])
        self.assertEqual([line[head.index("SEEN"):head.index("ENGINES")].strip()
                          for line in lines], ["live", "seen 3 min ago", "seen 3 h ago"])
        for line in lines:
            self.assertTrue(line.endswith(
                "0  0 waiting (0 tokens), 0 delayed, 0 running, 0 dead"), line)
        self.redis("zadd", f"pe:{{tiny:{A}:float32}}:w", "0", "000000000000x")
        self.assertIn("  1 waiting (0 tokens), ", self.good().splitlines()[1])

    def test_what_comes_of_a_model_is_shown(self):
        for id, more in (("plain", ()), ("both", ("--video=192", "--audio=64")),
                         ("mute", ("--video=4096", "--states=49", "--width=3840"))):
            self.card(id, A, more=more)
        head, *lines = self.good().splitlines()
        self.assertEqual({line.split()[0]: line[head.index("OUTPUTS"):head.index("SEEN")].strip()
                          for line in lines},
                         {"plain": "8 states of 128",
                          "both": "8 states of 128, video 192, audio 64",
                          "mute": "49 states of 3840, video 4096"})

    def test_a_card_is_removed(self):
        self.card("tiny", A, age_s=200)
        self.card("other", A, age_s=200)
        self.redis("zadd", f"pe:{{tiny:{A}:float32}}:w", "0", "000000000000x")
        self.assertEqual(self.good("--remove", "tiny"),
                         f"removed tiny {A} float32\n"
                         "jobs left in its queue, for an engine that comes back: 1\n")
        self.assertEqual(self.redis("hkeys", "pe:cards"), f"other:{A}:float32")

    def test_which_card_has_to_be_clear(self):
        self.card("tiny", A, age_s=200)
        self.card("tiny", B, age_s=200)
        self.card("tiny", B, "bfloat16", 200)
        self.bad("there are 3 cards of 'tiny': ", "--remove", "tiny")
        self.bad(f"there are 3 cards of 'tiny' with weights a: ", "--remove", "tiny", "--weights",
                 "a")
        self.bad(f"there are 2 cards of 'tiny' with weights ac: {B[:12]} ", "--remove", "tiny",
                 "--weights", "ac")
        self.bad("there is no card of 'tiny' with weights b", "--remove", "tiny", "--weights", "b")
        self.bad("there is no card of 'tin'", "--remove", "tin")
        self.assertEqual(self.good("--remove", "tiny", "--weights", "ac", "--compute", "float32"),
                         f"removed tiny {B} float32\n")
        self.assertEqual(self.good("--remove", "tiny", "--weights", "ac"),
                         f"removed tiny {B} bfloat16\n")
        self.assertEqual(self.good("--remove", "tiny"), f"removed tiny {A} float32\n")
        self.assertEqual(self.redis("keys", "pe:tokenizer:*"), "")

    def test_a_live_card_goes_by_force_alone(self):
        self.card("tiny", A)
        self.bad(f"tiny {A[:12]} float32 is live", "--remove", "tiny")
        self.assertEqual(self.good("--remove", "tiny", "--force"), f"removed tiny {A} float32\n")

    def test_bad_input(self):
        self.bad("go with --remove ID", "--weights", "ab")
        self.bad("go with --remove ID", "--force")
        self.bad("unknown argument 'tiny'", "tiny")
        self.bad("none.sock: connecting: No such file", f"--redis-queue=unix:{self.dir}/none.sock")


if __name__ == "__main__":
    if shutil.which("redis-server") is None:
        print("SKIPPED: no redis-server")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
