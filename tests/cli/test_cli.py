#!/usr/bin/env python3
"""The command line tool as a user meets it: the real binary, its output, its errors.

    test_cli.py PROMPT_ENCODER TESTS_DIR SCRATCH_DIR

Standard library only. What the numbers must be is golden/test_hidden_states.c's business.
"""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import unittest

PROGRAM, TESTS, SCRATCH = (pathlib.Path(a).resolve() for a in sys.argv[1:4])
TINY = TESTS / "golden/gemma3-tiny"
TINY4 = TESTS / "golden/gemma4-tiny"
PACKED4 = TESTS / "golden/gemma4-tiny-te-single-file.safetensors"
LTX1, LTX2, LTX4 = (TESTS / f"golden/ltx-tiny-{name}.safetensors"
                    for name in ("v1", "v2", "v2-gemma4"))
os.environ["XDG_CACHE_HOME"] = str(SCRATCH / "cache")  # where digests are kept


def run(*args, env=None, **kwargs):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PE_")}
    words = [a if isinstance(a, (str, bytes)) else str(a) for a in args]
    return subprocess.run([PROGRAM, *map(os.fsencode, words)], capture_output=True,
                          env={**clean, **(env or {})}, timeout=300, **kwargs)


def read_safetensors(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    metadata = header.pop("__metadata__", {})
    body = data[8 + length:]
    return {k: (v["dtype"], v["shape"], body[slice(*v["data_offsets"])])
            for k, v in header.items()}, metadata


def write_safetensors(path, tensors, metadata):
    header, at = {"__metadata__": metadata}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text +
                     b"".join(data for _, _, data in tensors.values()))


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = SCRATCH / "cli" / self.id().split(".")[-1]
        shutil.rmtree(self.dir, ignore_errors=True)
        self.dir.mkdir(parents=True)

    def good(self, *args, **kwargs):
        result = run(*args, **kwargs)
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        return result.stdout.decode()

    def bad(self, words, *args, **kwargs):
        """One sentence on stderr, a non-zero exit, nothing on stdout, nothing left behind."""
        before = sorted(self.dir.iterdir())
        result = run(*args, **kwargs)
        message = result.stderr.decode(errors="replace")
        self.assertEqual(result.returncode, 1, message)
        self.assertIn(words, message)
        self.assertEqual(len(message.splitlines()), 1, message)
        self.assertTrue(message.startswith("prompt-encoder: "), message)
        self.assertEqual(result.stdout, b"")
        self.assertEqual(sorted(self.dir.iterdir()), before)


class Encode(Case):
    def test_tensors_and_metadata(self):
        out = self.dir / "out.safetensors"
        text = self.good("encode", "--model", TINY, "-o", out, "a red fox", "")
        self.assertIn("2 prompts, 7 tokens", text)
        tensors, metadata = read_safetensors(out)
        self.assertEqual(list(tensors), ["p0.hidden_states", "p0.token_ids", "p1.hidden_states",
                                         "p1.token_ids"])
        self.assertEqual(tensors["p0.hidden_states"][:2], ("BF16", [8, 6, 128]))
        self.assertEqual(tensors["p1.hidden_states"][:2], ("BF16", [8, 1, 128]))
        self.assertEqual(struct.unpack("<i", tensors["p1.token_ids"][2]), (2,))  # <bos>
        self.assertRegex(metadata.pop("weights"), "^[0-9a-f]{64}$")
        self.assertRegex(metadata.pop("tokenizer"), "^[0-9a-f]{64}$")
        self.assertEqual(metadata, {"layers": "0,1,2,3,4,5,6,7", "model": "gemma3-tiny",
                                    "output": "hidden_states", "tokens": "6,1",
                                    "truncated": "false,false", "widths": "128"})
        self.assertEqual([p.name for p in self.dir.iterdir()], ["out.safetensors"])

    def test_same_bytes_again_and_from_another_folder(self):
        a, b = self.dir / "a", self.dir / "b"
        self.good("encode", "--model", TINY, "-o", a, "a red fox", "snow")
        shutil.copytree(TINY, self.dir / "copy")
        self.good("encode", "--model", "copy", "--model-id", "gemma3-tiny", "-o", "b", "a red fox",
                  "snow", cwd=self.dir)
        self.assertEqual(a.read_bytes(), b.read_bytes())

    def test_metadata_names_model_and_weights(self):
        out, model = self.dir / "out", self.dir / "a model.gguf"
        shutil.copytree(TINY, model)
        self.good("encode", "-m", model, "-o", out, "snow")
        before = read_safetensors(out)[1]
        self.assertEqual(before["model"], "a-model")
        weights = model / "model.safetensors"
        data = weights.read_bytes()
        weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        self.good("encode", "-m", model, "--model-id", "x.1", "-o", out, "snow")
        after = read_safetensors(out)[1]
        self.assertEqual(after["model"], "x.1")
        self.assertNotEqual(after["weights"], before["weights"])
        self.bad("--model-id: 'a b' is not of", "encode", "-m", model, "--model-id", "a b", "snow")

    def test_a_packed_file_gives_what_its_directory_gives(self):
        tensors = []
        for path in (TINY4, PACKED4):
            out = self.dir / "out"
            self.assertIn("1 prompt, ", self.good("encode", "--model", path, "-o", out, "a red fox"))
            tensors.append(read_safetensors(out)[0])
        self.assertEqual(tensors[0]["p0.hidden_states"][:2], ("BF16", [7, 6, 128]))
        self.assertEqual(tensors[0], tensors[1])

    def test_chosen_layers_and_dtype(self):
        whole, some = self.dir / "whole", self.dir / "some"
        self.good("encode", "--model", TINY, "--dtype", "float32", "-o", whole, "snow")
        self.good("encode", "--model", TINY, "--dtype", "float32", "--layers", "7,0", "-o", some,
                  "snow")
        _, (S, n, D), everything = read_safetensors(whole)[0]["p0.hidden_states"]
        dtype, shape, chosen = read_safetensors(some)[0]["p0.hidden_states"]
        self.assertEqual((dtype, shape), ("F32", [2, n, D]))
        size = n * D * 4
        self.assertEqual(chosen, everything[7 * size:8 * size] + everything[:size])
        self.assertEqual(read_safetensors(some)[1]["layers"], "7,0")

    def test_prompts_from_a_file_and_the_cut(self):
        prompts = self.dir / "prompts.json"
        prompts.write_text(json.dumps(["word " * 3000, "short", "NUL \0 inside"]))
        out = self.dir / "out"
        result = run("encode", "--model", TINY, "--layers", "0", "--prompts", prompts, "-o", out)
        self.assertEqual(result.returncode, 0)
        self.assertIn("prompt 0: cut to 1024 of its ", result.stderr.decode())
        _, metadata = read_safetensors(out)
        self.assertEqual(metadata["truncated"], "true,false,false")
        self.assertTrue(metadata["tokens"].startswith("1024,"))

    def test_settings_from_the_environment(self):
        text = self.good("encode", "snow", env={"PE_MODEL": str(TINY), "PE_THREADS": "1"})
        self.assertIn("1 prompt, ", text)
        self.bad("PE_THREADS: 'x'", "encode", "snow", env={"PE_MODEL": str(TINY),
                                                             "PE_THREADS": "x"})

    def test_backends_agree(self):
        numbers = []
        for backend in ("cpu", "loops"):
            text = self.good("encode", "--model", TINY, "--backend", backend, "a red fox")
            self.assertIn("6 tokens, hidden_states [8, 6, 128] BF16", text.splitlines()[1])
            row = text.splitlines()[1].split("last row:")[1].replace("...", "").split()
            numbers.append([float(x) for x in row])
        for a, b in zip(*numbers):
            self.assertAlmostEqual(a, b, delta=0.01 * abs(b) + 0.01)

    def test_closed_streams_do_not_reach_the_result(self):
        good = self.dir / "good"
        self.good("encode", "-m", TINY, "-o", good, "snow")
        for closed in (">&-", "2>&-", "<&- >&- 2>&-"):
            out = self.dir / "out"
            out.unlink(missing_ok=True)
            subprocess.run(["sh", "-c", f'"$0" encode -m "$1" -o "$2" snow {closed}', str(PROGRAM),
                            str(TINY), str(out)], timeout=60)
            self.assertEqual(out.read_bytes(), good.read_bytes(), closed)

    def test_a_reader_that_leaves_early_costs_no_result(self):
        prompts, out = self.dir / "prompts.json", self.dir / "out"
        prompts.write_text(json.dumps(["snow"] * 2000))
        subprocess.run(["sh", "-c", '"$0" encode -m "$1" --layers 0 --prompts "$2" -o "$3" | head -1',
                        str(PROGRAM), str(TINY), str(prompts), str(out)], timeout=60,
                       stdout=subprocess.DEVNULL)
        self.assertEqual(len(read_safetensors(out)[0]), 4000)

    def test_prompts_from_standard_input(self):
        text = self.good("encode", "-m", TINY, "--prompts", "-", input=b'["snow", "a"]')
        self.assertIn("2 prompts, ", text)
        self.bad("-: line 1", "encode", "-m", TINY, "--prompts", "-", input=b"snow")

    def test_output_to_a_pipe(self):
        good = self.dir / "good"
        self.good("encode", "-m", TINY, "-o", good, "snow")
        result = subprocess.run(["sh", "-c", 'mkfifo "$3"; cat "$3" & "$0" encode -m "$1" -o "$3" '
                                 'snow >/dev/null 2>&1; wait', str(PROGRAM), str(TINY), "", 
                                 str(self.dir / "fifo")], capture_output=True, timeout=60)
        self.assertEqual(result.stdout, good.read_bytes())

    def test_progress_is_a_plain_line_without_a_terminal(self):
        result = run("encode", "--model", TINY, "snow")
        self.assertRegex(result.stderr.decode(), r"^loading .*gemma3-tiny: 3 MB in \d+\.\d\d s, \d+\.\d\d GB/s\n$")

    def test_bad_input(self):
        out = self.dir / "out"
        self.bad("no model: give --model PATH", "encode", "snow")
        self.bad("/none: No such file", "encode", "-m", "/none", "snow")
        self.bad("no prompt", "encode", "-m", TINY)
        self.bad("not both", "encode", "-m", TINY, "--prompts", "x", "snow")
        self.bad("layer 8 is out of range: this model has 0 to 7", "encode", "-m", TINY,
                 "--layers", "0,8", "-o", out, "snow")
        self.bad("--layers: 'x' is not a whole number", "encode", "-m", TINY, "--layers", "0,x",
                 "snow")
        self.bad("layer 3 is wanted twice", "encode", "-m", TINY, "--layers", "3,3", "snow")
        self.bad("unknown flag --layer;", "encode", "--layer", "3", "snow")
        self.bad("--dtype: 'fp8' is none of bfloat16|float16|float32", "encode", "--dtype", "fp8")
        self.bad("prompt 1: ", "encode", b"-m", os.fsencode(TINY), b"-o", os.fsencode(out),
                 b"fine", b"bad \xff\xfe")
        self.bad("No such file", "encode", "-m", TINY, "-o", self.dir / "none/out", "snow")
        self.bad("is a directory", "encode", "-m", TINY, "-o", self.dir, "snow")
        self.bad("is none of", "encode", "-m", TINY, "--backend", "tpu", "snow")

    def test_bad_prompt_files(self):
        prompts = self.dir / "prompts.json"
        for text, words in [(b'["a", 3]', "item 1 is no string"), (b'{"a": 1}', "list of one or"),
                            (b"[]", "list of one or"), (b"[", "line 1"),
                            (b'["\xff"]', "line 1"), (b"", "line")]:
            prompts.write_bytes(text)
            self.bad(words, "encode", "-m", TINY, "--prompts", prompts)
        prompts.unlink()
        self.bad("No such file", "encode", "-m", TINY, "--prompts", prompts)

    def test_broken_models(self):
        model = self.dir / "model"
        shutil.copytree(TINY, model)
        weights = model / "model.safetensors"
        data = weights.read_bytes()
        weights.write_bytes(data[:-1])
        self.bad("model.safetensors", "encode", "-m", model, "snow")
        weights.write_bytes(data)
        config = json.loads((model / "config.json").read_text())
        config["text_config"]["intermediate_size"] = 321
        (model / "config.json").write_text(json.dumps(config))
        self.bad("shape [320,128], want [321,128]", "encode", "-m", model, "snow")
        config["model_type"] = "llama"
        (model / "config.json").write_text(json.dumps(config))
        self.bad("llama", "encode", "-m", model, "snow")
        (model / "config.json").unlink()
        self.bad("config.json", "encode", "-m", model, "snow")
        self.bad("prompts.json", "encode", "-m", TESTS / "golden/prompts.json", "snow")

    def test_an_older_result_survives_a_failure(self):
        out = self.dir / "out"
        out.write_bytes(b"older")
        self.bad("out of range", "encode", "-m", TINY, "--layers", "99", "-o", out, "snow")
        self.assertEqual(out.read_bytes(), b"older")


class Levels(Case):
    """With an LTX checkpoint."""

    PROJECTION = "text_embedding_projection."
    CONNECTORS = "model.diffusion_model."

    def encode(self, *args, ltx=(LTX2,), model=TINY, **kwargs):
        out = self.dir / "out"
        flags = [word for path in ltx for word in ("--ltx", path)]
        text = self.good("encode", "-m", model, *flags, "-o", out, *args, **kwargs)
        return text, *read_safetensors(out)

    def shapes(self, tensors):
        return {name: (dtype, shape) for name, (dtype, shape, _) in tensors.items()}

    def test_embeddings_are_the_default(self):
        text, tensors, metadata = self.encode("a red fox", "")
        self.assertIn("video [1024, 192] BF16, last row:", text)
        self.assertIn("\n    audio [1024, 64] BF16, last row:", text)
        self.assertNotIn("mask", text)
        want = {}
        for i, n in enumerate((6, 1)):
            want |= {f"p{i}.video": ("BF16", [1024, 192]), f"p{i}.audio": ("BF16", [1024, 64]),
                     f"p{i}.mask": ("I64", [1024]), f"p{i}.token_ids": ("I32", [n])}
        self.assertEqual(list(self.shapes(tensors).items()), list(want.items()))
        self.assertEqual(tensors["p1.mask"][2], struct.pack("<q", 1) * 1024)
        self.assertRegex(metadata.pop("weights"), "^[0-9a-f]{64}$")
        self.assertRegex(metadata.pop("tokenizer"), "^[0-9a-f]{64}$")
        self.assertEqual(metadata, {"extractor": "v2", "modalities": "video,audio",
                                    "model": "gemma3-tiny", "output": "embeddings",
                                    "tokens": "6,1", "truncated": "false,false",
                                    "widths": "192,64"})
        named = self.encode("--output", "embeddings", "--modalities", "audio,video", "a red fox", "")
        self.assertEqual(named[1], tensors)

    def test_features_and_modalities(self):
        _, both, metadata = self.encode("--output", "features", "--dtype", "float32", "a red fox")
        self.assertEqual(self.shapes(both), {"p0.video_features": ("F32", [6, 192]),
                                             "p0.audio_features": ("F32", [6, 64]),
                                             "p0.token_ids": ("I32", [6])})
        self.assertEqual((metadata["output"], metadata["modalities"]), ("features", "video,audio"))
        _, audio, metadata = self.encode("--output", "features", "--dtype", "float32",
                                         "--modalities", "audio", "a red fox")
        self.assertEqual(list(audio), ["p0.audio_features", "p0.token_ids"])
        self.assertEqual(audio["p0.audio_features"], both["p0.audio_features"])
        self.assertEqual((metadata["modalities"], metadata["widths"]), ("audio", "64"))

    def test_hidden_states_are_those_of_gemma_alone(self):
        _, tensors, metadata = self.encode("--output", "hidden_states", "a red fox")
        _, alone, plain = self.encode("a red fox", ltx=())
        self.assertEqual(tensors, alone)
        self.assertNotEqual(metadata.pop("weights"), plain.pop("weights"))  # of other weights
        self.assertEqual(metadata, plain)

    def test_other_checkpoints(self):
        _, tensors, metadata = self.encode("x", ltx=(LTX1,))
        self.assertEqual(self.shapes(tensors)["p0.audio"], ("BF16", [1024, 128]))
        self.assertEqual(metadata["extractor"], "v1")
        _, _, metadata = self.encode("x", ltx=(LTX4,), model=TINY4)
        self.assertEqual((metadata["ltx_version"], metadata["gemma_version"]),
                         ("2.5.0", "gemma4-12b-ltx-v1"))

    def split(self, path):
        """The projection in a file of its own."""
        tensors, metadata = read_safetensors(path)
        parts = self.dir / "projection", self.dir / "connectors"
        for part, prefix in zip(parts, (self.PROJECTION, self.CONNECTORS)):
            write_safetensors(part, {k: v for k, v in tensors.items() if k.startswith(prefix)},
                              metadata)
        return parts

    def test_two_files(self):
        _, whole, metadata = self.encode("x")
        parts = self.split(LTX2)
        for ltx in (parts, parts[::-1]):
            self.assertEqual(self.encode("x", ltx=ltx)[1:], (whole, metadata))
        env = {"PE_LTX": ",".join(map(str, parts))}
        self.assertEqual(self.encode("x", ltx=(), env=env)[1:], (whole, metadata))
        env = {"PE_LTX": "nowhere"}  # a flag wins
        self.assertEqual(self.encode("x", env=env)[1:], (whole, metadata))

    def test_a_packed_file_with_its_projection(self):
        """LTX-2.5: Gemma and the projection in one file, the connectors in another."""
        _, whole, metadata = self.encode("x", ltx=(LTX4,), model=TINY4)
        projection, connectors = self.split(LTX4)
        tensors, packed_metadata = read_safetensors(PACKED4)
        packed = self.dir / "packed.safetensors"
        write_safetensors(packed, {**tensors, **read_safetensors(projection)[0]}, packed_metadata)
        for ltx in ((packed, connectors), (connectors, packed)):
            _, tensors, packed_metadata = self.encode("x", ltx=ltx, model=packed)
            self.assertEqual(tensors, whole)
            for name in ("output", "ltx_version", "modalities"):
                self.assertEqual(packed_metadata[name], metadata[name])

    def test_wrong_arguments(self):
        def bad(words, *args):
            self.bad(words, "encode", "-m", TINY, *args, "x")
        bad("--output features needs an LTX checkpoint: give --ltx PATH", "--output", "features")
        bad("--output: 'pooled' is none of hidden_states|features|embeddings", "--output", "pooled")
        bad("layers are chosen of hidden_states, not of embeddings", "--ltx", LTX2, "--layers", "0")
        bad("--modalities goes with --output features or embeddings", "--modalities", "video")
        bad("--modalities: 'smell' is neither video nor audio", "--ltx", LTX2, "--modalities",
            "smell")
        bad("--modalities: audio is wanted twice", "--ltx", LTX2, "--modalities", "audio,audio")
        bad("--ltx: ", *["--ltx", LTX2] * 3)
        bad("nowhere: No such file", "--ltx", "nowhere")

    def test_a_checkpoint_that_is_not_right_is_named(self):
        def bad(words, ltx=None, model=TINY):
            self.bad(words, "encode", "-m", model, "--ltx", ltx or changed, "x")

        def write(tensors=None, **settings):
            config = json.loads(metadata["config"])
            config["transformer"] |= settings
            write_safetensors(changed, tensors or good, {**metadata, "config": json.dumps(config)})
        good, metadata = read_safetensors(LTX2)
        changed = self.dir / "changed.safetensors"
        bad("ltx-tiny-v2-gemma4.safetensors needs a Gemma of gemma_version gemma4-12b-ltx-v1, but "
            "this one is a gemma3", LTX4)
        bad("ltx-tiny-v2.safetensors (model_version not given, without gemma_source_checkpoint) "
            "needs a Gemma of model_type gemma3, but this one is a gemma4", LTX2, TINY4)
        bad("model.safetensors: no tensors " + self.CONNECTORS, TINY / "model.safetensors")
        changed.write_bytes(LTX2.read_bytes()[:-100])
        bad("changed.safetensors: ")
        write({k: v for k, v in good.items() if not k.startswith(self.PROJECTION)})
        bad("changed.safetensors: no tensors text_embedding_projection.*: the projection is missing")
        write(caption_projection_first_linear=True)
        bad("changed.safetensors: caption_projection_first_linear is true, expected false")
        name = self.CONNECTORS + "video_embeddings_connector.transformer_1d_blocks.1.attn1.to_k.bias"
        dtype, shape, data = good[name]
        self.assertEqual(dtype, "BF16")
        write({**good, name: (dtype, shape, data[:-2] + b"\xc0\x7f")})
        bad(f"changed.safetensors: {name}: ")
        write({**good, name: (dtype, [shape[0] // 2], data[:len(data) // 2])})
        bad(f"changed.safetensors: {name}: shape [{shape[0] // 2}], want [{shape[0]}]")
        del good[name]
        write()
        bad(f"changed.safetensors: {name}: no such tensor")

    def test_no_audio(self):
        tensors, metadata = read_safetensors(LTX2)
        mute = self.dir / "mute"
        write_safetensors(mute, {k: v for k, v in tensors.items() if "audio_" not in k}, metadata)
        self.bad("audio is wanted, and this LTX checkpoint is video-only", "encode", "-m", TINY,
                 "--ltx", mute, "--modalities", "audio", "x")
        text, tensors, metadata = self.encode("x", ltx=(mute,))
        self.assertEqual(list(tensors), ["p0.video", "p0.mask", "p0.token_ids"])
        self.assertEqual(metadata["modalities"], "video")


class Tokenize(Case):
    def test_ids_are_the_references(self):
        golden = json.loads((TESTS / "golden/expected-gemma3-tiny.json").read_text())
        text = self.good("tokenize", "-m", TINY, "--prompts", TESTS / "golden/prompts.json")
        self.assertEqual(json.loads(text), golden["token_ids"])
        text = self.good("tokenize", "-m", TINY / "tokenizer.json", "a")
        self.assertEqual(json.loads(text), [golden["token_ids"][1]])

    def test_limit(self):
        whole = json.loads(self.good("tokenize", "-m", TINY, "--limit", "0", "word " * 3000))[0]
        self.assertGreater(len(whole), 1024)
        self.assertEqual(json.loads(self.good("tokenize", "-m", TINY, "--limit", "5",
                                              "word " * 3000))[0], whole[:5])

    def test_bad_input(self):
        self.bad("no model", "tokenize", "a")
        self.bad("--limit: '-1'", "tokenize", "-m", TINY, "--limit", "-1", "a")
        self.bad("No such file", "tokenize", "-m", self.dir / "none", "a")


class Inspect(Case):
    def test_a_directory_and_a_file(self):
        text = self.good("inspect", TINY)
        self.assertIn("Gemma 3: 7 layers (1 global), width 128, feed-forward 320", text)
        self.assertIn("4 query and 2 key/value heads of 64, window 32", text)
        self.assertIn("weights     complete: ", text)
        self.assertIn("tokenizer   1367 ids, <bos> is 2", text)
        text = self.good("inspect", "--tensors", TINY / "model.safetensors")
        self.assertIn("language_model.model.layers.0.self_attn.q_proj.weight", text)
        self.assertIn("[256,128]", text)
        self.assertIn("cannot be encoded with: model.safetensors: safetensors without gemma_config",
                      text)

    def test_gemma4_in_a_directory_and_packed(self):
        for path, form in ((TINY4, "safetensors"), (PACKED4, "safetensors, packed in one file")):
            text = self.good("inspect", path)
            self.assertIn(f"format      {form}\n", text)
            self.assertIn("Gemma 4: 6 layers (1 global), width 128, feed-forward 320", text)
            self.assertIn("version     gemma4-12b-ltx-v1\n", text)
            self.assertIn("4 query and 2 key/value heads of 64, window 32\n            global: 1 "
                          "key/value heads of 128, values from the keys' weights\n", text)
            self.assertIn("theta 1e+06 (global, positions / 1, part of a head), 10000 (sliding)", text)
            self.assertIn("weights     complete: ", text)
            self.assertIn("tokenizer   1367 ids, <bos> is 2", text)
        self.assertIn("metadata    gemma_config = {", text)

    def test_what_is_lacking(self):
        model = self.dir / "model"
        shutil.copytree(TINY, model)
        (model / "tokenizer.json").unlink()
        config = json.loads((model / "config.json").read_text())
        config["text_config"]["num_hidden_layers"] = 8
        (model / "config.json").write_text(json.dumps(config))
        text = self.good("inspect", model)
        self.assertRegex(text, r"tokenizer   lacking: .*tokenizer\.json: No such file")
        self.assertRegex(text, r"weights     lacking: .*layers\.7\.input_layernorm\.weight")

    def test_bad_input(self):
        self.bad("takes one PATH", "inspect")
        self.bad("No such file", "inspect", self.dir / "none")
        self.bad("neither a safetensors nor a GGUF file", "inspect", TINY / "config.json")


class Bench(Case):
    def test_random_weights_are_measured(self):
        text = self.good("bench", "-m", "random:gemma-3-tiny", "--runs", "5", "--json")
        measured = json.loads(text)
        self.assertEqual(measured["model"], "random:gemma-3-tiny")
        self.assertEqual([sum(s["tokens"]) for s in measured["scenes"]], [61, 61, 91, 364, 1457])
        self.assertGreater(measured["open_s"], 0)
        self.assertEqual(measured["loaded_bytes"], 0)  # nothing of it comes from a file
        self.assertGreater(measured["weights_bytes"], 0)
        self.assertGreater(measured["peak_bytes"], measured["weights_bytes"])
        self.assertGreater(measured["device_bytes"], measured["peak_bytes"])
        for scene in measured["scenes"]:
            self.assertGreater(scene["first_ms"], 0)
            self.assertGreater(scene["second_ms"], 0)
            self.assertGreater(scene["min_ms"], 0)
            self.assertLessEqual(scene["min_ms"], scene["median_ms"])
            self.assertLessEqual(scene["median_ms"], scene["max_ms"])

    def test_prompts_of_a_file(self):
        file = self.dir / "measured.json"
        file.write_text(json.dumps(["A red fox", "A"]))
        want = [len(ids) for ids in json.loads(self.good("tokenize", "-m", TINY, "--prompts", file))]
        scene, = json.loads(self.good("bench", "-m", TINY, "--prompts", file, "--runs", "5",
                                      "--json"))["scenes"]
        self.assertEqual((scene["name"], scene["tokens"]), ("prompts", want))

    def test_made_up_prompts(self):
        scene, = json.loads(self.good("bench", "-m", "random:gemma-3-tiny", "--tokens", "3,1024,1",
                                      "--runs", "5", "--json"))["scenes"]
        self.assertEqual((scene["name"], scene["tokens"]), ("3,1024,1", [3, 1024, 1]))
        bench = "bench", "-m", "random:gemma-3-tiny"
        self.bad("--tokens: ", *bench, "--tokens", "3,x")
        self.bad("--tokens: ", *bench, "--tokens", "1025")
        self.bad("no list of numbers", *bench, "--tokens", "1" * 20)
        self.bad("33 prompts, at most 32", *bench, "--tokens", ",".join(["1"] * 33))
        self.bad("give --tokens", *bench, "--prompts", "any.json")
        self.bad("not both", "bench", "-m", TINY, "--tokens", "3", "--prompts", "any.json")

    def test_a_file(self):
        """What was read of it is in the table and in JSON: every tensor of the fixture but the embedding
        table, which stays in the file on a CPU."""
        measured = json.loads(self.good("bench", "-m", str(TINY), "--runs", "5", "--json"))
        self.assertEqual(measured["loaded_bytes"], sum(
            len(data) for name, (_, _, data) in read_safetensors(TINY / "model.safetensors")[0].items()
            if name.startswith("language_model.model.") and "embed_tokens" not in name))
        self.assertGreater(measured["load_s"], 0)
        text = self.good("bench", "-m", str(TINY), "--runs", "5")
        self.assertRegex(text, r"opened in [\d.]+ s \([\d.]+ GB of files in [\d.]+ s: [\d.]+ GB/s\)")
        self.assertRegex(text, r"weights [\d.]+ GB; at most [\d.]+ of [\d.]+ GB in use by this process")

    def test_bad_input(self):
        self.bad("no model", "bench")
        self.bad("there are random:gemma-3-12b", "bench", "-m", "random:gemma-9")
        self.bad("there are random:ltx-2.3", "bench", "-m", "random:gemma-3-tiny", "--ltx",
                 "random:ltx-9")
        self.bad("goes with one random LTX checkpoint", "bench", "-m", "random:gemma-3-tiny",
                 "--ltx", TINY)


class Program(Case):
    def test_help(self):
        self.assertIn("encode", self.good("--help"))
        for command in ("encode", "tokenize", "inspect", "verify", "random-ltx", "bench", "models", "up"):
            self.assertIn(f"usage: prompt-encoder {command} ", self.good(command, "--help"))
        self.assertRegex(self.good("--version"), r"^prompt-encoder \d+\.\d+\.\d+\n$")

    def test_no_such_command(self):
        self.bad("no command 'enocde'; 'prompt-encoder --help' lists them", "enocde")
        self.assertEqual(run().returncode, 1)

    def test_a_full_disk_is_an_error(self):
        with open("/dev/full", "wb") as full:
            result = subprocess.run([PROGRAM, "tokenize", "-m", str(TINY), "a"], stdout=full,
                                    stderr=subprocess.PIPE)
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"cannot write to standard output", result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
