#!/usr/bin/env python3
"""Compares features and embeddings with a numpy reading of the same random LTX checkpoint.

What the golden vectors do not pin: settings that no released checkpoint has, alone and together.
For each variant a small checkpoint of random weights is written, for the Gemma of
tests/golden/gemma3-tiny; prompt-encoder encodes prompts to all three levels; numpy makes features
and embeddings, in float64, of the hidden states that prompt-encoder gave. (Those have a comparison
of their own: compare.py and the golden vectors.) The table shows the largest relative error
(Frobenius) of a prompt. Exit status 1 when one is over the bound.

    python3 -m venv .venv && .venv/bin/pip install -r tests/reference/requirements.txt
    .venv/bin/python tests/reference/compare_ltx.py
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from safetensors.numpy import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
GEMMA = ROOT / "tests/golden/gemma3-tiny"
BOUND = 1e-4  # as of the golden vectors in float32; about 1e-6 is usual
ROWS = 1024
PROJECTION = "text_embedding_projection."
CONNECTOR = "model.diffusion_model.{}_embeddings_connector."

V2 = {
    "caption_proj_before_connector": True,
    "caption_projection_first_linear": False,
    "caption_proj_input_norm": False,
    "caption_projection_second_linear": False,
}
# Of a connector, with the defaults of the transformer config where it gives none.
BASE = {
    "connector_num_attention_heads": 2,
    "connector_attention_head_dim": 16,
    "connector_num_layers": 2,
    "connector_positional_embedding_max_pos": [4096],
}
AUDIO = {
    "audio_connector_num_attention_heads": 3,
    "audio_connector_attention_head_dim": 8,
    "audio_connector_num_layers": 1,
}
GATED = {"connector_apply_gated_attention": True}
FLOAT64 = {"frequencies_precision": "float64"}
INTERLEAVED = {"rope_type": "interleaved"}

VARIANTS = {
    "as LTX-2.0": BASE | FLOAT64,
    "as LTX-2.3": BASE | AUDIO | V2 | GATED | FLOAT64,
    "V1, float32 frequencies, interleaved": BASE | INTERLEAVED,
    "V1, gates": BASE | GATED | FLOAT64,
    "V2, all else by default": BASE | V2,
    "V2, interleaved, float64": BASE | AUDIO | V2 | GATED | FLOAT64 | INTERLEAVED,
    "V2, interleaved, float32": BASE | AUDIO | V2 | INTERLEAVED,
    "V2, feed-forward without bias": BASE | AUDIO | V2 | GATED | {"connector_ff_bias": False},
    "V2, max_pos 1 (absent)": {k: v for k, v in (BASE | V2 | FLOAT64).items() if "max" not in k},
    "V2, max_pos 20": BASE | V2 | FLOAT64 | {"connector_positional_embedding_max_pos": [20]},
    "V2, audio's heads alone": BASE | V2 | GATED | {"audio_connector_num_attention_heads": 3},
    "V2, audio's head width alone": BASE | V2 | {"audio_connector_attention_head_dim": 24},
    "V2, audio's blocks alone": BASE | V2 | {"audio_connector_num_layers": 3},
    "V2, no blocks": BASE | AUDIO | V2 | {"connector_num_layers": 0},
    "V2, heads of 2": BASE | V2 | GATED | {"connector_attention_head_dim": 2},
    "V1, video-only": BASE | FLOAT64 | {"video_only": True},
    "V2, video-only": BASE | V2 | GATED | {"video_only": True},
    "V2, 32 registers": BASE | AUDIO | V2 | {"registers": 32},
    "V2, 1024 registers": BASE | AUDIO | V2 | {"registers": 1024},
    "V2, float16": BASE | AUDIO | V2 | GATED | {"dtype": np.float16},
    "V1, projection in another file": BASE | FLOAT64 | {"two_files": True},
    "V2, projection in another file": BASE | AUDIO | V2 | GATED | {"two_files": True},
}

PROMPTS = [
    "a cat",
    "",  # <bos> alone
    "a very long road " * 800,  # over 1024 tokens: cut
    "a dog",  # as many tokens as "a cat" has
    "a dog",
    "   stripped\n",
    "rain over the harbour at night, neon lights in the puddles",
    "two lovers walk along the beach " * 9,
    "x",
]


def connector_of(settings, modality):
    """Heads, head width, blocks; each of audio's falls back alone."""
    out = []
    for key in ("num_attention_heads", "attention_head_dim", "num_layers"):
        value = settings["connector_" + key]
        out.append(settings.get("audio_connector_" + key, value) if modality == "audio" else value)
    return out


def write_checkpoint(folder, settings, S, D, rng):
    """Random weights; returns the paths, and the numbers as they were stored."""
    settings = dict(settings)
    dtype = settings.pop("dtype", np.float32)
    two_files, registers = settings.pop("two_files", False), settings.pop("registers", 128)
    modalities = ["video"] if settings.pop("video_only", False) else ["video", "audio"]
    weights = {}

    def linear(name, rows, columns, bias=True):
        weights[name + ".weight"] = rng.standard_normal((rows, columns)) / np.sqrt(columns)
        if bias:
            weights[name + ".bias"] = 0.2 * rng.standard_normal(rows)

    for modality in modalities:
        H, E, L = connector_of(settings, modality)
        prefix, W = CONNECTOR.format(modality), H * E
        if "caption_proj_before_connector" in settings:
            linear(f"{PROJECTION}{modality}_aggregate_embed", W, S * D)
        elif modality == "video":
            linear(PROJECTION + "aggregate_embed", W, S * D, bias=False)
        weights[prefix + "learnable_registers"] = rng.standard_normal((registers, W))
        for layer in range(L):
            block = f"{prefix}transformer_1d_blocks.{layer}."
            for name in ("to_q", "to_k", "to_v", "to_out.0"):
                linear(f"{block}attn1.{name}", W, W)
            for name in ("q_norm", "k_norm"):
                weights[f"{block}attn1.{name}.weight"] = 1.5 + 0.3 * rng.standard_normal(W)
            if settings.get("connector_apply_gated_attention"):
                linear(block + "attn1.to_gate_logits", H, W)
            ff_bias = settings.get("connector_ff_bias", True)
            linear(block + "ff.net.0.proj", 4 * W, W, ff_bias)
            linear(block + "ff.net.2", W, 4 * W, ff_bias)
    weights = {name: value.astype(dtype) for name, value in weights.items()}
    metadata = {"config": json.dumps({"transformer": settings}), "model_version": "2.3.0"}
    parts = [weights]
    if two_files:
        parts = [{k: v for k, v in weights.items() if k.startswith(PROJECTION) == first}
                 for first in (True, False)]
    paths = []
    for i, part in enumerate(parts):
        paths.append(folder / f"ltx-{i}.safetensors")
        save_file(part, paths[-1], metadata if i == len(parts) - 1 else None)
    return paths, {k: v.astype(np.float64) for k, v in weights.items()}, modalities


def make_features(settings, weights, states, modality):
    """States [S, n, D] to [n, width]."""
    S, n, D = states.shape
    if "caption_proj_before_connector" not in settings:
        mean = states.sum((1, 2), keepdims=True) / (n * D + 1e-6)
        spread = states.max((1, 2), keepdims=True) - states.min((1, 2), keepdims=True)
        flat = (8 * (states - mean) / (spread + 1e-6)).transpose(1, 2, 0).reshape(n, D * S)
        return flat @ weights[PROJECTION + "aggregate_embed.weight"].T
    normed = states / np.sqrt((states**2).mean(-1, keepdims=True) + 1e-6)
    flat = normed.transpose(1, 2, 0).reshape(n, D * S)
    matrix = weights[f"{PROJECTION}{modality}_aggregate_embed.weight"]
    bias = weights[f"{PROJECTION}{modality}_aggregate_embed.bias"]
    return (flat * np.sqrt(len(matrix) / D)) @ matrix.T + bias


def angles(settings, W):
    """[ROWS, W / 2], in float32 as the reference has them."""
    m = W // 2
    i = np.arange(m)
    if settings.get("frequencies_precision") == "float64":
        f = (10000.0 ** (i / (m - 1)) * np.pi / 2).astype(np.float32)
    else:
        step = np.float64(np.float32(1 / (m - 1)))
        e = np.where(i < m // 2, step * i, 1 - step * (m - 1 - i)).astype(np.float32)
        f = (10000.0 ** e.astype(np.float64)).astype(np.float32) * np.float32(np.pi / 2)
    max_pos = settings.get("connector_positional_embedding_max_pos", [1])[0]
    place = (2 * np.arange(ROWS) / max_pos - 1).astype(np.float32)
    return place[:, None] * f[None]


def rms(x):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)


def gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def make_embeddings(settings, weights, features, modality):
    H, E, L = connector_of(settings, modality)
    W, prefix, n = H * E, CONNECTOR.format(modality), len(features)
    registers = weights[prefix + "learnable_registers"]
    h = registers[np.arange(ROWS) % len(registers)]
    h[:n] = features
    angle = angles(settings, W).astype(np.float64)
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    # which numbers of a row turn together, by angle
    if settings.get("rope_type") == "interleaved":
        a = 2 * np.arange(W // 2)
        b = a + 1
    else:
        a = (E * np.arange(H)[:, None] + np.arange(E // 2)[None]).ravel()
        b = a + E // 2

    def turned(x):
        out = np.empty_like(x)
        out[:, a] = x[:, a] * cos - x[:, b] * sin
        out[:, b] = x[:, b] * cos + x[:, a] * sin
        return out

    for layer in range(L):
        block = f"{prefix}transformer_1d_blocks.{layer}."

        def linear(x, name):
            return x @ weights[f"{block}{name}.weight"].T + weights.get(f"{block}{name}.bias", 0)

        x = rms(h)
        q = turned(rms(linear(x, "attn1.to_q")) * weights[block + "attn1.q_norm.weight"])
        k = turned(rms(linear(x, "attn1.to_k")) * weights[block + "attn1.k_norm.weight"])
        v = linear(x, "attn1.to_v")
        out = np.empty_like(h)
        for head in range(H):
            at = slice(head * E, (head + 1) * E)
            scores = q[:, at] @ k[:, at].T / np.sqrt(E)
            scores = np.exp(scores - scores.max(1, keepdims=True))
            out[:, at] = scores @ v[:, at] / scores.sum(1, keepdims=True)
        if settings.get("connector_apply_gated_attention"):
            gates = 2 / (1 + np.exp(-linear(x, "attn1.to_gate_logits")))
            out *= np.repeat(gates, E, 1)
        h = h + linear(out, "attn1.to_out.0")
        h = h + linear(gelu(linear(rms(h), "ff.net.0.proj")), "ff.net.2")
    return rms(h)


def encode(args, folder, prompts, level, ltx):
    listed, out = folder / "prompts.json", folder / f"{level}.safetensors"
    listed.write_text(json.dumps(prompts))
    command = [args.program, "encode", "--model", GEMMA, "--prompts", listed, "--output", level,
               "--dtype", "float32", "-o", out, *args.extra]
    for path in ltx:
        command += ["--ltx", path]
    subprocess.run(command, check=True, capture_output=True)
    return load_file(out)


def error(got, want):
    if got.shape != want.shape:
        sys.exit(f"shape {got.shape}, want {want.shape}")
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def compare(args, folder, settings, states, rng):
    """Worst errors of features and of embeddings."""
    S, _, D = states["p0.hidden_states"].shape
    ltx, weights, modalities = write_checkpoint(folder, settings, S, D, rng)
    features = encode(args, folder, PROMPTS, "features", ltx)
    embeddings = encode(args, folder, PROMPTS, "embeddings", ltx)
    worst = [0.0, 0.0]
    if any(f"p0.{m}" in embeddings for m in ("video", "audio") if m not in modalities):
        sys.exit("embeddings of a modality that is not there")
    for i in range(len(PROMPTS)):
        for m in modalities:
            want = make_features(settings, weights,
                                 states[f"p{i}.hidden_states"].astype(np.float64), m)
            worst[0] = max(worst[0], error(features[f"p{i}.{m}_features"], want))
            want = make_embeddings(settings, weights, want, m)
            worst[1] = max(worst[1], error(embeddings[f"p{i}.{m}"], want))
        if embeddings[f"p{i}.mask"].tolist() != [1] * ROWS:
            sys.exit(f"prompt {i}: a mask that is not all ones")
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=str(ROOT / "build/release/bin/prompt-encoder"))
    parser.add_argument("--bound", type=float, default=BOUND)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("extra", nargs="*", help="after --: more flags for prompt-encoder encode")
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    good = True
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        states = encode(args, folder, PROMPTS, "hidden_states", [])
        print("tokens:", *(len(states[f"p{i}.token_ids"]) for i in range(len(PROMPTS))))
        print("\n| checkpoint | features | embeddings |\n| --- | ---: | ---: |")
        for title, settings in VARIANTS.items():
            worst = compare(args, folder, settings, states, rng)
            good = good and max(worst) <= args.bound
            print(f"| {title} | {worst[0]:.1e} | {worst[1]:.1e} |", flush=True)
    print(f"\nbound {args.bound:.0e}: {'held' if good else 'broken'}")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
