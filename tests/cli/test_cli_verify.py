#!/usr/bin/env python3
"""verify, random-ltx and inspect of LTX checkpoints: the real binary, as an operator uses it.

    test_cli_verify.py PROMPT_ENCODER TESTS_DIR SCRATCH_DIR HAVE_ONEDNN

HAVE_ONEDNN 0: a slow build, which leaves out what computes many embeddings.
"""
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import unittest

from test_cli import PROGRAM, TESTS, TINY, TINY4, PACKED4, Case, read_safetensors, run

fast = unittest.skipUnless(sys.argv[4] == "1", "slow without oneDNN")
GOLDEN = TESTS / "golden"
V1, V2 = GOLDEN / "ltx-tiny-v1.safetensors", GOLDEN / "ltx-tiny-v2.safetensors"
V2_GEMMA4 = GOLDEN / "ltx-tiny-v2-gemma4.safetensors"
PROJECTION, CONNECTORS = "text_embedding_projection.", "model.diffusion_model."
SIZES = {"F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "U8": 1}


def write_safetensors(path, tensors, metadata=None):
    header, body = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def has_bfloat16():
    return run("encode", "-m", TINY, "--compute", "bfloat16", "a").returncode == 0


def floats(tensor):
    """Numbers of an F32 or BF16 tensor."""
    dtype, _, data = tensor
    if dtype == "F32":
        return struct.unpack(f"<{len(data) // 4}f", data)
    halves = struct.unpack(f"<{len(data) // 2}H", data)
    return struct.unpack(f"<{len(halves)}f", struct.pack(f"<{len(halves)}I", *(h << 16 for h in halves)))


class Verify(Case):
    def fixtures(self, n=3):
        """The golden folder with the first prompts only, every file of it the test's own."""
        folder = self.dir / "golden"
        folder.mkdir()
        for model in (TINY, TINY4):
            shutil.copytree(model, folder / model.name)
            name = f"expected-{model.name}"
            shutil.copy(GOLDEN / f"{name}.safetensors", folder)
            golden = json.loads((GOLDEN / f"{name}.json").read_text())
            golden["token_ids"] = golden["token_ids"][:n]
            (folder / f"{name}.json").write_text(json.dumps(golden))
        for ltx in (V1, V2, V2_GEMMA4):
            shutil.copy(ltx, folder)
        prompts = json.loads((GOLDEN / "prompts.json").read_text())
        (folder / "prompts.json").write_text(json.dumps(prompts[:n]))
        return folder

    def change(self, path, name, at=0, by=0.5):
        """One number of one tensor, in place."""
        tensors, metadata = read_safetensors(path)
        dtype, shape, data = tensors[name]
        data = bytearray(data)
        if dtype == "F32":
            value, = struct.unpack_from("<f", data, 4 * at)
            struct.pack_into("<f", data, 4 * at, value + by)
        else:
            bits, = struct.unpack_from("<H", data, 2 * at)
            value, = struct.unpack("<f", struct.pack("<I", bits << 16))
            struct.pack_into("<H", data, 2 * at, struct.unpack("<I", struct.pack("<f", value + by))[0] >> 16)
        tensors[name] = dtype, shape, bytes(data)
        write_safetensors(path, tensors, metadata)

    def missed(self, words, *args):
        """Exit 1, the table on stdout, one sentence on stderr; returns the missed rows as (level, prompt)."""
        result = run("verify", *args)
        message = result.stderr.decode()
        self.assertEqual(result.returncode, 1, message)
        self.assertIn(words, message.splitlines()[-1])
        self.assertTrue(message.splitlines()[-1].startswith("prompt-encoder: "), message)
        rows = [line.split() for line in result.stdout.decode().splitlines() if line.endswith("MISS")]
        return [(row[0], int(row[1])) for row in rows]

    @fast
    def test_golden_float32(self):
        text = self.good("verify", "--fixtures", self.fixtures())
        self.assertIn("gemma3-tiny with ltx-tiny-v1.safetensors: cpu, float32", text)
        self.assertIn("gemma3-tiny with ltx-tiny-v2.safetensors: cpu, float32", text)
        self.assertIn("gemma4-tiny with ltx-tiny-v2-gemma4.safetensors: cpu, float32", text)
        rows = [line for line in text.splitlines() if line.endswith("  pass")]
        self.assertEqual(len(rows), 2 * 3 + 3 * 3 * 3)  # ids of two models; prompts, levels, checkpoints
        self.assertRegex(text, r"\nembeddings +2 +21  (video|audio)\S* .* \d\.\de-0[67]  1\.0e-04  pass\n")
        self.assertRegex(text, r"all 33 checks passed on cpu in float32; the largest error is 0\.0\d of")

    @fast
    def test_golden_bfloat16(self):
        if not has_bfloat16():
            self.skipTest("no bfloat16 arithmetic here")
        text = self.good("verify", "--fixtures", self.fixtures(), "--compute", "bfloat16")
        self.assertEqual(text.count("  pass\n"), 2 * 3 + 2 * 3 * 3)
        self.assertEqual(text.count("  no bound\n"), 3 * 3)  # features: the reference gives no loss
        self.assertIn("all 24 checks passed on cpu in bfloat16", text)

    @fast
    def test_golden_float8(self):
        if not has_bfloat16():
            self.skipTest("no bfloat16 arithmetic here")
        text = self.good("verify", "--fixtures", self.fixtures(), "--compute", "float8")
        self.assertEqual(text.count("  pass\n"), 2 * 3 + 3 * 3 * 3)
        self.assertRegex(text, r"\nfeatures +2 +21  (video|audio) +1\.\de-01  3\.0e-01  pass\n")
        self.assertIn("all 33 checks passed on cpu in float8", text)

    @fast
    def test_golden_loops(self):
        self.assertIn("all 11 checks passed on loops in float32",
                      self.good("verify", "--fixtures", self.fixtures(1), "--backend", "loops"))

    @fast
    def test_golden_from_the_checkout(self):
        text = self.good("verify", "-q", cwd=self.dir, env={"PE_MODEL": str(TINY)})
        self.assertIn("all 126 checks passed", text)
        self.assertNotIn("  pass\n", text)
        self.assertIn(f"{TINY} itself was not looked at", text)

    def test_golden_of_an_installation(self):
        program = self.dir / "bin/prompt-encoder"
        program.parent.mkdir()
        shutil.copy(PROGRAM, program)
        result = subprocess.run([program, "verify"], capture_output=True)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr.decode(), r"^prompt-encoder: no golden vectors: neither \S+ nor "
                         r"\S+/bin/\.\./share/prompt-encoder/golden is there; give --fixtures DIR\n$")
        (self.dir / "share/prompt-encoder").mkdir(parents=True)
        self.fixtures(1).rename(self.dir / "share/prompt-encoder/golden")
        result = subprocess.run([program, "verify"], capture_output=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(b"all 11 checks passed", result.stdout)

    @fast
    def test_a_changed_expected_value_is_a_miss(self):
        for tensor, row in [("1.hidden_states", ("hidden_states", 1)),
                            ("0.v2.audio_features", ("features", 0)),
                            ("2.v2.video", ("embeddings", 2)),
                            ("2.v2.audio_row_mix", ("embeddings", 2))]:
            folder = self.fixtures()
            self.change(folder / "expected-gemma4-tiny.safetensors", tensor)
            self.assertEqual(self.missed("1 of 33 checks missed their bound on cpu in float32",
                                         "--fixtures", folder), [row])
            quiet = run("verify", "-q", "--fixtures", folder).stdout.decode()
            self.assertEqual((quiet.count("MISS"), quiet.count("pass")), (1, 0))
            shutil.rmtree(folder)

    @fast
    def test_expected_values_that_are_no_numbers_are_misses(self):
        folder = self.fixtures()
        self.change(folder / "expected-gemma3-tiny.safetensors", "0.v1.video", by=float("nan"))
        self.assertEqual(self.missed("1 of 33 checks", "--fixtures", folder), [("embeddings", 0)])

    @fast
    def test_changed_weights_are_misses(self):
        folder = self.fixtures()
        self.change(folder / "gemma3-tiny/model.safetensors",
                    "language_model.model.layers.3.mlp.down_proj.weight", at=7)
        rows = self.missed(" of 33 checks missed their bound", "--fixtures", folder)
        self.assertEqual({level for level, _ in rows}, {"hidden_states", "features", "embeddings"})
        self.assertEqual(len(rows), 2 * 3 * 3)
        shutil.rmtree(folder)
        folder = self.fixtures()
        self.change(folder / V2.name, CONNECTORS + "audio_embeddings_connector.learnable_registers", at=64 * 77)
        self.assertEqual(self.missed("3 of 33 checks", "--fixtures", folder),
                         [("embeddings", i) for i in range(3)])

    @fast
    def test_changed_weights_are_misses_in_bfloat16(self):
        if not has_bfloat16():
            self.skipTest("no bfloat16 arithmetic here")
        folder = self.fixtures()
        # one register of 128, by which 8 of 1024 rows are wrong
        self.change(folder / V2.name, CONNECTORS + "video_embeddings_connector.learnable_registers",
                    at=192 * 77, by=20.0)
        self.assertEqual(self.missed("3 of 24 checks", "--compute", "bfloat16", "--fixtures", folder),
                         [("embeddings", i) for i in range(3)])

    @fast
    def test_changed_weights_are_misses_in_float8(self):
        if not has_bfloat16():
            self.skipTest("no bfloat16 arithmetic here")
        folder = self.fixtures()
        self.change(folder / "gemma3-tiny/model.safetensors",
                    "language_model.model.layers.3.post_feedforward_layernorm.weight", at=7, by=50.0)
        rows = self.missed(" of 33 checks missed their bound", "--compute", "float8", "--fixtures", folder)
        self.assertEqual([row for row in rows if row[0] == "hidden_states"],
                         2 * [("hidden_states", i) for i in range(3)])

    @fast
    def test_changed_ids_are_misses(self):
        folder = self.fixtures()
        (folder / "prompts.json").write_text(json.dumps(["", "b", "a"]))
        self.assertEqual(self.missed("4 of 33 checks", "--fixtures", folder),
                         2 * [("token_ids", 1), ("token_ids", 2)])

    def test_broken_golden_folders(self):
        self.bad("--fixtures: /none: no such folder", "verify", "--fixtures", "/none")
        folder = self.fixtures(1)
        tensors = folder / "expected-gemma3-tiny.safetensors"
        listing = folder / "expected-gemma3-tiny.json"
        data, golden = tensors.read_bytes(), json.loads(listing.read_text())

        def refused(words, **changes):
            listing.write_text(json.dumps({**golden, **changes}))
            result = run("verify", "--fixtures", folder)
            self.assertEqual(result.returncode, 1)
            self.assertIn(words, result.stderr.decode())
            self.assertEqual(len(result.stderr.splitlines()), 1)

        for cut in (len(data) - 1, 100, 0):
            tensors.write_bytes(data[:cut])
            refused("expected-gemma3-tiny.safetensors")
        tensors.unlink()
        refused("expected-gemma3-tiny.safetensors: No such file")
        shutil.copy(GOLDEN / "expected-gemma4-tiny.safetensors", tensors)
        refused("0.hidden_states: shape [7,1,128], but this model makes [8,1,128]")
        tensors.write_bytes(data)
        refused("no prompts: there is neither a tensor 0.token_ids nor a list token_ids in "
                "expected-gemma3-tiny.json", token_ids=[])
        refused("prompt 0 has 0 token ids, expected 1 to 1024", token_ids=[[]])
        refused("prompt 0: token 1 is no id", token_ids=[[2, "3"]])
        refused("prompt 0: token 1 is no id", token_ids=[[2, -3]])
        refused("prompt 0: token 0 is 99999, the model's vocabulary", token_ids=[[99999]])
        refused("prompt 0 has 1025 token ids", token_ids=[[2] * 1025])
        refused("prompts.json: 1 prompts, but 2 are expected", token_ids=[[2], [2]])
        refused("reference_bf16_relative_error: '0.v1.video' is no error above 0",
                reference_bf16_relative_error={"0.v1.video": -1})
        listing.write_text("[")
        self.bad("expected-gemma3-tiny.json: line 1", "verify", "--fixtures", folder)
        listing.write_text(json.dumps(golden))
        (folder / V1.name).unlink()
        self.bad("ltx-tiny-v1.safetensors: No such file", "verify", "--fixtures", folder)

    @fast
    def test_rows_and_mixes_of_the_wrong_kind(self):
        folder = self.fixtures(1)
        path = folder / "expected-gemma3-tiny.safetensors"
        good = read_safetensors(path)[0]
        for name, value, words in [
                ("0.v1.rows", ("I64", [5], struct.pack("<5q", 0, 1, 2, 3, 1024)), "1024 is no row of 1024"),
                ("0.v1.rows", ("I64", [5], struct.pack("<5q", 0, 1, 2, 3, -1)), "-1 is no row of 1024"),
                ("0.v1.rows", ("I32", [5], bytes(20)), "expected 1 to 1024 numbers of I64"),
                ("0.v1.rows", ("I64", [4], bytes(32)), "0.v1.video: shape [5,128], but this model makes [4,128]"),
                ("0.v1.video", ("I32", [5, 128], bytes(5 * 128 * 4)), "0.v1.video: type I32, expected F32"),
                ("row_mix_weights", ("F32", [1023], bytes(1023 * 4)), "row_mix_weights, which 0.v1.video_row_mix"),
                ("row_mix_weights", None, "row_mix_weights, which 0.v1.video_row_mix needs")]:
            write_safetensors(path, {k: v for k, v in {**good, name: value}.items() if v is not None})
            result = run("verify", "--fixtures", folder)
            self.assertEqual(result.returncode, 1)
            self.assertIn(words, result.stderr.decode())

    @fast
    def test_a_model_of_ones_own(self):
        text = self.good("verify", "-m", TINY, "--ltx", V2, "--expected",
                         self.fixtures() / "expected-gemma3-tiny.safetensors")
        self.assertIn(f"{TINY}: cpu, float32\n", text)
        self.assertIn("all 9 checks passed on cpu in float32", text)
        folder = self.dir / "golden"
        # two files, and without any: hidden states are left
        tensors, metadata = read_safetensors(V2)
        one, two = self.dir / "one.safetensors", self.dir / "two.safetensors"
        write_safetensors(one, {k: v for k, v in tensors.items() if k.startswith(CONNECTORS)}, metadata)
        write_safetensors(two, {k: v for k, v in tensors.items() if k.startswith(PROJECTION)})
        self.assertIn("all 9 checks", self.good("verify", "-m", TINY, "--ltx", one, "--ltx", two, "--expected",
                                                folder / "expected-gemma3-tiny.safetensors"))
        self.assertIn("all 3 checks", self.good("verify", "-m", TINY, "--expected",
                                                folder / "expected-gemma3-tiny.safetensors"))
        self.change(folder / V2.name, PROJECTION + "video_aggregate_embed.bias")
        rows = self.missed("6 of 9 checks missed", "-m", TINY, "--ltx", folder / V2.name, "--expected",
                           folder / "expected-gemma3-tiny.safetensors")
        self.assertEqual(set(rows), {(level, i) for level in ("features", "embeddings") for i in range(3)})

    @fast
    def test_what_one_machine_writes_another_checks(self):
        out = self.dir / "out.safetensors"
        text = self.good("verify", "-m", TINY, "--ltx", V2, "--write", out)
        self.assertRegex(text, r"wrote \S+/out.safetensors: 5 prompts by prompt-encoder \S+, cpu, float32\n$")
        tensors, metadata = read_safetensors(out)
        self.assertRegex(metadata["made_by"], r"^prompt-encoder \d\S+, cpu, float32$")
        self.assertEqual(tensors["0.v2.video"][:2], ("F32", [1024, 192]))
        self.assertEqual(tensors["0.hidden_states"][:2], ("F32", [8, 1, 128]))
        same = self.good("verify", "-m", TINY, "--ltx", V2, "--expected", out)
        self.assertEqual(same.count("  0.0e+00  1.0e-04  pass\n"), 15)
        one = self.dir / "one.safetensors"
        self.good("verify", "-m", TINY, "--ltx", V2, "--write", one, "snow")
        other = self.good("verify", "-m", TINY, "--ltx", V2, "--expected", one, "--backend", "loops")
        self.assertIn("all 3 checks passed on loops", other)
        # the extractor of another checkpoint is another level
        self.assertIn("all 5 checks", self.good("verify", "-m", TINY, "--ltx", V1, "--expected", out))
        self.change(out, "3.v2.audio", at=64 * 1000)  # any row
        self.assertEqual(self.missed("1 of 15 checks", "-m", TINY, "--ltx", V2, "--expected", out),
                         [("embeddings", 3)])

    def test_prompts_to_write(self):
        out = self.dir / "out.safetensors"
        prompts = self.dir / "prompts.json"
        prompts.write_text(json.dumps(["a", "word " * 100]))
        self.good("verify", "-m", TINY, "--write", out, "--prompts", prompts)
        tensors, _ = read_safetensors(out)
        n = tensors["1.token_ids"][1][0]
        self.assertGreater(n, 64)
        self.assertEqual(tensors["1.hidden_states_rows"][:2], ("F32", [8, 4, 128]))
        self.assertEqual(tensors["0.hidden_states"][:2], ("F32", [8, 2, 128]))
        self.assertIn("all 2 checks", self.good("verify", "-m", TINY, "--expected", out))
        self.change(out, "1.hidden_states_rows", at=8 * 4 * 128 - 1)  # the last row of the last state
        text = run("verify", "-m", TINY, "--expected", out).stdout.decode()
        self.assertRegex(text, rf"hidden_states +1 +{n}  state 7 .* MISS\n")
        self.good("verify", "-m", TINY, "--write", out, "one", "two", "three")
        self.assertIn("all 3 checks", self.good("verify", "-m", TINY, "--expected", out))

    def test_bounds(self):
        out = self.dir / "out.safetensors"
        self.good("verify", "-m", TINY, "--write", out)
        self.change(out, "2.hidden_states", by=0.01)
        self.assertEqual(self.missed("1 of 5 checks", "-m", TINY, "--expected", out), [("hidden_states", 2)])
        self.good("verify", "-m", TINY, "--expected", out, "--bound", "0.01")
        self.assertEqual(len(self.missed("5 of 5 checks", "-m", TINY, "--backend", "loops", "--expected",
                                         out, "--bound", "1e-12")), 5)
        if has_bfloat16():
            own = ("verify", "-m", TINY, "--compute", "bfloat16", "--expected", out)
            result = run(*own)
            self.assertEqual(result.returncode, 1)
            self.assertIn("does not say what the reference loses in bfloat16: give --bound",
                          result.stderr.decode())
            self.assertIn("all 5 checks", self.good(*own, "--bound", "0.02"))
            (self.dir / "out.json").write_text(json.dumps({"reference_bf16_relative_error": {
                f"{i}.hidden_states": 8 * [0.016] for i in range(5)}}))
            self.assertRegex(self.good(*own), r"  2\.0e-02  pass\n")
        for text in ("0", "-1", "x", "1x", "nan", "inf"):
            self.bad(f"--bound: '{text}' is no number above 0", "verify", "--bound", text)

    def test_bad_files_of_ones_own(self):
        out = self.dir / "out.safetensors"
        self.good("verify", "-m", TINY, "--write", out, "snow")
        self.bad("No such file", "verify", "-m", TINY, "--expected", self.dir / "none")
        data = out.read_bytes()
        for cut in (len(data) - 1, 50, 7, 0):
            out.write_bytes(data[:cut])
            self.bad("out.safetensors", "verify", "-m", TINY, "--expected", out)
        self.bad("no prompts: there is neither", "verify", "-m", TINY, "--expected", TINY / "model.safetensors")
        ids = struct.pack("<2i", 2, 4)
        for tensors, words in [
                ({"0.token_ids": ("F32", [2], bytes(8))}, "0.token_ids is F32 [2], expected a list of I32"),
                ({"0.token_ids": ("I32", [1, 2], ids)}, "0.token_ids is I32 [1,2], expected a list"),
                ({"0.token_ids": ("I32", [0], b"")}, "prompt 0 has 0 token ids"),
                ({"0.token_ids": ("I64", [1], struct.pack("<q", 1 << 40))}, "token 0 is no id")]:
            write_safetensors(out, tensors)
            self.bad(words, "verify", "-m", TINY, "--expected", out)
        write_safetensors(out, {"0.token_ids": ("I32", [2], ids)})
        result = run("verify", "-m", TINY, "--expected", out)
        self.assertEqual(result.returncode, 1)
        self.assertIn("holds nothing that this model makes (without --ltx: hidden states)",
                      result.stderr.decode())

    def test_an_older_file_survives_a_failed_write(self):
        out = self.dir / "out.safetensors"
        out.write_bytes(b"older")
        self.bad("No such file", "verify", "-m", "/none", "--write", out, "snow")
        self.bad("--prompts", "verify", "-m", TINY, "--write", out, "--prompts", "x", "snow")
        self.assertEqual(out.read_bytes(), b"older")
        self.bad("No such file", "verify", "-m", TINY, "--write", self.dir / "none/out", "snow")

    def test_flags_that_do_not_go_together(self):
        self.bad("--expected and --write are two commands", "verify", "--expected", "x", "--write", "y")
        self.bad("leave --expected away", "verify", "--fixtures", self.dir, "--expected", "x")
        self.bad("leave --write away", "verify", "--fixtures", self.dir, "--write", "x")
        self.bad("prompts are for --write", "verify", "snow")
        self.bad("prompts are for --write", "verify", "--expected", "x", "-m", TINY, "--prompts", "x")
        self.bad("no model: give --model PATH", "verify", "--expected", "x")
        self.bad("no model: give --model PATH", "verify", "--write", "x")


class RandomLtx(Case):
    def make(self, name, *args, model=TINY):
        out = self.dir / name
        text = self.good("random-ltx", "-m", model, "-o", out, *args)
        self.assertRegex(text, rf"^wrote \S+{name}: \d+ tensors, \d+\.\d MB of random numbers\n$")
        return out

    def test_the_layout_is_ltx_s(self):
        tensors, metadata = read_safetensors(self.make("random"))
        golden, golden_metadata = read_safetensors(V2)
        self.assertEqual(set(tensors), set(golden))
        self.assertEqual(json.loads(metadata["config"])["transformer"].keys(),
                         json.loads(golden_metadata["config"])["transformer"].keys())
        self.assertEqual(metadata["model_version"], "2.3.0")
        self.assertEqual(metadata["prompt_encoder_random_weights"], "seed 1")
        self.assertEqual(set(read_safetensors(self.make("random-v1", "--extractor", "v1"))[0]),
                         set(read_safetensors(V1)[0]))

    def test_the_same_seed_gives_the_same_file(self):
        first = self.make("random-1").read_bytes()
        self.assertEqual(first, self.make("random-2", "--seed", "1").read_bytes())
        other = self.make("random-3", "--seed", "2").read_bytes()
        self.assertEqual(len(first), len(other))
        a, b = read_safetensors(self.dir / "random-1")[0], read_safetensors(self.dir / "random-3")[0]
        self.assertTrue(all(a[k][2] != b[k][2] for k in a))

    def test_numbers_have_the_size_that_is_meant(self):
        tensors, _ = read_safetensors(self.make("random", "--video-width", "256"))
        for name, size in [(PROJECTION + "video_aggregate_embed.weight", 1024 ** -0.5),
                           (CONNECTORS + "video_embeddings_connector.learnable_registers", 1.0),
                           (CONNECTORS + "video_embeddings_connector.transformer_1d_blocks.1.ff.net.2.weight",
                            1024 ** -0.5)]:
            numbers = floats(tensors[name])
            mean = sum(numbers) / len(numbers)
            deviation = (sum(x * x for x in numbers) / len(numbers)) ** 0.5
            self.assertLess(abs(mean), 0.02 * size, name)
            self.assertAlmostEqual(deviation / size, 1.0, delta=0.02)

    @fast
    def test_embeddings_are_sane(self):
        out = self.dir / "out"
        for model, args, widths in [(TINY, (), (512, 256)), (TINY, ("--extractor", "v1"), (512, 512)),
                                    (TINY, ("--audio-width", "0", "--blocks", "1"), (512, None)),
                                    (TINY4, ("--heads", "4", "--video-width", "64"), (64, 256))]:
            ltx = self.make("random", *args, model=model)
            result = run("encode", "-m", model, "--ltx", ltx, "--output", "embeddings", "--dtype", "float32",
                         "-o", out, "a red fox", "a blue whale under the ice")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertRegex(result.stderr.decode(),
                             r'ltx_random file=random text="weights are random \(seed 1\): features and '
                             r'embeddings mean nothing"\n')
            tensors, _ = read_safetensors(out)
            self.assertEqual("p0.audio" in tensors, widths[1] is not None)
            for name, width in zip(("video", "audio"), widths):
                if width is None:
                    continue
                one, two = (floats(tensors[f"p{p}.{name}"]) for p in (0, 1))
                self.assertEqual(tensors[f"p0.{name}"][1], [1024, width])
                self.assertTrue(all(abs(x) < 100 for x in one))  # neither NaN nor huge
                size = sum(x * x for x in one)
                self.assertAlmostEqual(size / len(one), 1.0, delta=0.01)  # the last norm
                rows = {one[i * width:i * width + 4] for i in range(1024)}
                # by 9 and 12 tokens of their own and 128 registers that come again
                self.assertGreater(len(rows), 128)
                apart = sum((a - b) ** 2 for a, b in zip(one, two)) / size
                self.assertGreater(apart, 1e-4, name)

    def test_bad_settings(self):
        out = self.dir / "random"
        self.bad("takes --model PATH and -o FILE", "random-ltx", "-m", TINY)
        self.bad("takes --model PATH and -o FILE", "random-ltx", "-o", out)
        self.bad("put 'random' in the name", "random-ltx", "-m", TINY, "-o", self.dir / "ltx-2.3.safetensors")
        (self.dir / "random-folder").mkdir()
        self.bad("put 'random' in the name", "random-ltx", "-m", TINY, "-o", self.dir / "random-folder/ltx")
        self.bad("--video-width: 100 is not 8 heads of an even width", "random-ltx", "-m", TINY, "-o", out,
                 "--video-width", "100")
        self.bad("--audio-width: 24 is not 8 heads of an even width", "random-ltx", "-m", TINY, "-o", out,
                 "--audio-width", "24")
        self.bad("at most 512 each", "random-ltx", "-m", TINY, "-o", out, "--video-width", "1024", "--heads", "1")
        self.bad("No such file", "random-ltx", "-m", "/none", "-o", out)
        model = self.dir / "gemma4"
        shutil.copytree(TINY4, model)
        config = json.loads((model / "config.json").read_text())
        del config["gemma_version"]
        (model / "config.json").write_text(json.dumps(config))
        self.bad("a gemma4 without gemma_version", "random-ltx", "-m", model, "-o", out)


class InspectLtx(Case):
    def some(self, keep, name="some.safetensors", metadata=True):
        tensors, meta = read_safetensors(V2)
        write_safetensors(self.dir / name, {k: v for k, v in tensors.items() if keep(k)}, meta if metadata else None)
        return self.good("inspect", self.dir / name)

    def test_whole_checkpoints(self):
        text = self.good("inspect", V2)
        for line in ("format      safetensors, LTX checkpoint", "extractor   v2, as LTX-2.3 and 2.5",
                     "video       192 wide: 3 heads of 64, 2 blocks, 128 registers",
                     "audio       64 wide: 2 heads of 32, 2 blocks, 128 registers",
                     "connectors  with gate, split rope of float64, positions / 4096",
                     "gemma       wants a Gemma 3, whose hidden states have 1024 numbers a token",
                     "version     not given", "weights     complete: 2.6 MB of the file's 2.6 MB are read"):
            self.assertIn(line + "\n", text)
        self.assertNotIn("lacking", text)
        text = self.good("inspect", V1)
        self.assertIn("extractor   v1, as LTX-2.0\n", text)
        self.assertIn("without gate, interleaved rope of float32, positions / 4096\n", text)
        text = self.good("inspect", V2_GEMMA4)
        self.assertIn("gemma       wants gemma_version gemma4-12b-ltx-v1, whose hidden states have 896", text)
        self.assertIn("version     2.5.0\n", text)

    def test_only_what_is_needed_is_counted(self):
        tensors, metadata = read_safetensors(V2)
        tensors["model.diffusion_model.transformer_blocks.0.x"] = ("U8", [5000000], bytes(5000000))
        write_safetensors(self.dir / "big", tensors, metadata)
        self.assertIn("weights     complete: 2.6 MB of the file's 7.6 MB are read\n",
                      self.good("inspect", self.dir / "big"))

    def test_halves(self):
        text = self.some(lambda k: k.startswith(CONNECTORS))
        self.assertIn("weights     complete connectors: 2.0 MB of ", text)
        self.assertIn("lacking     the projection: give the file with text_embedding_projection.* too", text)
        text = self.some(lambda k: k.startswith(PROJECTION), metadata=False)
        self.assertIn("projection  v2, as LTX-2.3 and 2.5: video 192 wide, audio 64; for a Gemma, whose hidden "
                      "states have 1024 numbers a token\n", text)
        self.assertIn("lacking     the connectors: give the file with model.diffusion_model.video_", text)
        text = self.some(lambda k: "audio_" not in k)
        self.assertIn("audio       none: a video-only checkpoint\n", text)
        self.assertIn("weights     complete: ", text)

    def test_what_is_wrong(self):
        text = self.some(lambda k: not k.endswith("1.attn1.to_k.bias"))
        self.assertRegex(text, r"weights     lacking: .*blocks\.1\.attn1\.to_k\.bias: no such tensor\n")
        text = self.some(lambda k: True, metadata=False)
        self.assertIn("connectors  cannot be used: some.safetensors: no metadata config", text)
        text = self.some(lambda k: "video_" not in k)
        self.assertIn("connectors  cannot be used: some.safetensors: no tensors model.diffusion_model.video_", text)
        text = self.some(lambda k: k == PROJECTION + "video_aggregate_embed.bias")
        self.assertIn("projection  lacking: neither aggregate_embed.weight nor ", text)
        tensors, metadata = read_safetensors(V2)
        write_safetensors(self.dir / "new", tensors, {**metadata, "model_version": "2.5.0"})
        self.assertIn("gemma       lacking: new: model_version 2.5.0 must name its Gemma",
                      self.good("inspect", self.dir / "new"))

    def test_random_ones_say_so(self):
        self.good("random-ltx", "-m", TINY, "-o", self.dir / "random", "--seed", "7")
        text = self.good("inspect", self.dir / "random")
        self.assertIn("RANDOM (seed 7): what they encode means nothing\n", text)
        self.assertIn("version     2.3.0\n", text)

    def test_a_packed_gemma_with_a_projection(self):
        packed, metadata = read_safetensors(PACKED4)
        projection = {k: v for k, v in read_safetensors(V2_GEMMA4)[0].items() if k.startswith(PROJECTION)}
        write_safetensors(self.dir / "packed", {**packed, **projection}, metadata)
        text = self.good("inspect", self.dir / "packed")
        self.assertIn("format      safetensors, packed in one file\n", text)
        self.assertIn("weights     complete: 2.8 MB beside the embedding table\n", text)
        self.assertIn("projection  v2, as LTX-2.3 and 2.5: video 192 wide, audio 64; for a Gemma, whose hidden "
                      "states have 896 numbers a token\n", text)
        self.assertIn("lacking     the connectors: ", text)
        self.assertNotIn("projection", self.good("inspect", PACKED4))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
