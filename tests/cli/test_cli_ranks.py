#!/usr/bin/env python3
"""Every golden vector of the reference, from engines of 1, 2, 3, 4 and 8 ranks, in each way to share the work and the weights.

    test_cli_ranks.py PROMPT_ENCODER TESTS_DIR
"""
import subprocess
import sys
import unittest

PROGRAM, TESTS = sys.argv[1:3]
RANKS = (1, 2, 3, 4, 8)


class Ranks(unittest.TestCase):
    def check(self, *options):
        for ranks in RANKS:
            with self.subTest(ranks=ranks):
                done = subprocess.run([PROGRAM, "verify", "-q", f"--fixtures={TESTS}/golden", f"--ranks={ranks}", *options],
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
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


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
