#!/usr/bin/env python3
"""Every golden vector of the reference, from engines of 1, 2, 3, 4 and 8 ranks, in each way to share the work and the weights.

    test_cli_ranks.py PROMPT_ENCODER TESTS_DIR
"""
import pathlib
import re
import subprocess
import sys
import unittest

PROGRAM, TESTS = sys.argv[1:3]
RANKS = (1, 2, 3, 4, 8)


def run(*argv):
    return subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300, check=False)


class Ranks(unittest.TestCase):
    def check(self, *options):
        for ranks in RANKS:
            with self.subTest(ranks=ranks):
                done = run(PROGRAM, "verify", "-q", f"--fixtures={TESTS}/golden", f"--ranks={ranks}", *options)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertIn("checks passed on cpu in float32", done.stdout)
                self.assertNotIn("MISS", done.stdout)

    def test_replicated(self):
        self.check("--strategy=replicated")

    def test_sharded(self):
        self.check("--strategy=sharded")

    def test_as_the_rule_has_it(self):
        self.check("--strategy=auto")

    def test_each_has_a_share_of_every_layer(self):
        self.check("--residency=sharded", "--shard-by=tensor")

    def test_each_has_some_layers(self):
        self.check("--residency=sharded", "--shard-by=layer")


class Examples(unittest.TestCase):
    """engine.h as a library: all ranks have the same tensors of a pair, as threads and as processes."""

    def digests(self, name, ranks):
        done = run(pathlib.Path(PROGRAM).parent / name, "cpu", str(ranks), f"{TESTS}/golden/gemma3-tiny",
                   f"{TESTS}/golden/ltx-tiny-v2.safetensors")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = re.findall(r"^rank (\d+) prompt (\d): .* 3 tensors, \d+ bytes, digest (\w{8})$", done.stdout, re.M)
        self.assertEqual(sorted((int(r), int(p)) for r, p, _ in lines), [(r, p) for r in range(ranks) for p in (0, 1)])
        for prompt in "01":
            self.assertEqual(len({d for _, p, d in lines if p == prompt}), 1, done.stdout)
        return {p: d for _, p, d in lines}

    def test_all_ranks_have_the_same(self):
        for ranks in RANKS:
            with self.subTest(ranks=ranks):
                digests = self.digests("ranks_as_threads", ranks)
                self.assertNotEqual(digests["0"], digests["1"])
                self.assertEqual(self.digests("ranks_as_processes", ranks), digests)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
