#!/usr/bin/env python3
"""Compares prompt-encoder's hidden states with transformers' on the same weights.

The GGUF file is dequantised by the gguf package and loaded into transformers' Gemma3TextModel in
float32; neither shares code with prompt-encoder. Both encode the prompts of
tests/golden/prompts.json. For every prompt the table shows the largest relative error (Frobenius)
over all hidden states. Exit status 1 when one is over the bound.

    python3 -m venv .venv && .venv/bin/pip install -r tests/reference/requirements.txt
    .venv/bin/python tests/reference/compare.py models/gemma-3-270m-q4_k_m.gguf

--time also times both, in turn, on one prompt of 8, 61 and 300 tokens each (medians).
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import gguf
import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import Gemma3TextConfig, Gemma3TextModel

ROOT = pathlib.Path(__file__).resolve().parents[2]
BOUND = 1e-3  # float32 on both sides gives about 1e-6

NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP = {"token_embd.weight": "embed_tokens.weight", "output_norm.weight": "norm.weight"}


def load_reference(path):
    reader = gguf.GGUFReader(path)

    def field(key, default=None):
        found = reader.fields.get("gemma3." + key)
        return default if found is None else found.contents()

    state = {}
    for tensor in reader.tensors:
        values = torch.from_numpy(
            np.array(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
        name = TOP.get(tensor.name)
        if name is None:
            _, layer, kind, _ = tensor.name.split(".")
            name = f"layers.{layer}.{NAMES[kind]}.weight"
        if "norm" in name:
            values = values - 1  # GGUF stores the whole factor, transformers adds the 1
        state[name] = values
    scaling = {}
    if field("rope.scaling.type") == "linear":
        scaling = {"rope_scaling": {"rope_type": "linear", "factor": field("rope.scaling.factor")}}
    config = Gemma3TextConfig(
        vocab_size=state["embed_tokens.weight"].shape[0],
        hidden_size=field("embedding_length"),
        intermediate_size=field("feed_forward_length"),
        num_hidden_layers=field("block_count"),
        num_attention_heads=field("attention.head_count"),
        num_key_value_heads=field("attention.head_count_kv"),
        head_dim=field("attention.key_length"),
        query_pre_attn_scalar=field("attention.key_length"),
        rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
        sliding_window=field("attention.sliding_window"),
        max_position_embeddings=field("context_length"),
        rope_theta=field("rope.freq_base"),
        rope_local_base_freq=10000.0,
        **scaling,
    )
    model = Gemma3TextModel(config)
    model.load_state_dict(state, strict=True)
    return model.eval()


def hidden_states(model, ids):
    """All states of one prompt, at the positions that left padding to 1024 gives it."""
    positions = torch.arange(1024 - len(ids), 1024)[None]
    with torch.no_grad():
        out = model(input_ids=torch.tensor([ids]), position_ids=positions,
                    output_hidden_states=True, use_cache=False)
    return torch.stack(out.hidden_states, 0)[:, 0].numpy()


def run(program, model, prompts, extra):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "ours.safetensors"
        listed = pathlib.Path(folder) / "prompts.json"
        listed.write_text(json.dumps(prompts))
        subprocess.run([program, "encode", "--model", model, "--prompts", listed, "--dtype",
                        "float32", "-o", out, *extra], check=True, stdout=subprocess.DEVNULL)
        return load_file(out)


def error(got, want):
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def compare(args, model):
    prompts = json.loads((ROOT / "tests/golden/prompts.json").read_text())
    ours = run(args.program, args.model, prompts, args.extra)
    worst = 0.0
    print("| prompt | tokens | worst state | its error | last state's error |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for i in range(len(prompts)):
        ids = ours[f"p{i}.token_ids"].tolist()
        want = hidden_states(model, ids)
        got = ours[f"p{i}.hidden_states"]
        if got.shape != want.shape:
            sys.exit(f"prompt {i}: shape {got.shape}, want {want.shape}")
        errors = [error(got[s], want[s]) for s in range(len(want))]
        worst = max(worst, *errors)
        print(f"| {i} | {len(ids)} | {int(np.argmax(errors))} | {max(errors):.1e} | "
              f"{errors[-1]:.1e} |")
    print(f"\nworst relative error {worst:.1e}, bound {args.bound:.0e}")
    return worst <= args.bound


def time_both(args, model):
    """Ours in its own process (tests/bench/bench_encode.c), theirs here; they take turns."""
    bench = pathlib.Path(args.program).parent / "bench_encode"
    torch.set_num_threads(args.threads)
    print("\n| tokens | prompt-encoder ms | transformers ms | times faster |")
    print("| ---: | ---: | ---: | ---: |")
    for n in (8, 61, 300):
        ids = [2] + [(7919 * i) % model.config.vocab_size for i in range(1, n)]
        hidden_states(model, ids)
        mine, theirs = [], []
        for _ in range(args.rounds):
            out = subprocess.run([bench, args.model, str(args.threads), str(n)], check=True,
                                 capture_output=True, text=True).stdout
            mine.append(json.loads(out.splitlines()[-1])["median_ms"])
            for _ in range(5):
                start = time.perf_counter()
                hidden_states(model, ids)
                theirs.append((time.perf_counter() - start) * 1e3)
        a, b = statistics.median(mine), statistics.median(theirs)
        print(f"| {n} | {a:.1f} | {b:.1f} | {b / a:.2f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a Gemma 3 GGUF file")
    parser.add_argument("--program", default=str(ROOT / "build/release/bin/prompt-encoder"))
    parser.add_argument("--bound", type=float, default=BOUND)
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("extra", nargs="*", help="after --: more flags for prompt-encoder encode")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = load_reference(args.model)
    good = compare(args, model)
    if args.time:
        time_both(args, model)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
