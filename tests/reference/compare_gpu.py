#!/usr/bin/env python3
"""What we lose in bfloat16 beside what transformers loses, on the same weights and device.

Writes a model of Gemma 3 270M's shape (random bfloat16 weights, 4096 rows of vocabulary, the
tokenizer of tests/golden/gemma3-tiny) and encodes the prompts of tests/golden/prompts.json three
times: prompt-encoder in bfloat16, transformers in bfloat16, transformers in float32. Of every
hidden state, over all prompts' tokens, the table shows the relative error (Frobenius) of the first
two against the third. Exit status 1 when one of ours is over 1.25 times theirs, or, where ours
computes in float32 (--compute float32), over 1e-4.

    compare_gpu.py --program build/cuda/bin/prompt-encoder                       # on a GPU
    compare_gpu.py --program build/release/bin/prompt-encoder --backend cpu     # without
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma3TextConfig, Gemma3TextModel

ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = ROOT / "tests/golden/gemma3-tiny"
ROWS = 1024
BOUND, FLOAT32_BOUND = 1.25, 1e-4

SIZES = dict(hidden_size=640, intermediate_size=2048, num_hidden_layers=18, num_attention_heads=4,
             num_key_value_heads=1, head_dim=256, query_pre_attn_scalar=256, sliding_window=512,
             vocab_size=4096, max_position_embeddings=32768, rms_norm_eps=1e-6)


def make_model(n_layers):
    """On the CPU, in bfloat16; norms and products of a size that keeps every layer's part in what
    is added up about equal."""
    sizes = SIZES | {"num_hidden_layers": n_layers}
    config = Gemma3TextConfig(
        **sizes, rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}})
    model = Gemma3TextModel(config)
    random = torch.Generator().manual_seed(7)
    for name, weight in model.named_parameters():
        values = torch.randn(weight.shape, generator=random)
        scale = 0.2 if weight.dim() == 1 else weight.shape[1] ** -0.5
        weight.data = (values * scale).to(torch.bfloat16)
    return model.eval()


def write_model(folder, model):
    """As a directory of the form that Gemma's text models come in."""
    config = model.config
    text = SIZES | {"num_hidden_layers": config.num_hidden_layers}
    (folder / "config.json").write_text(json.dumps(text | {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text",
        "torch_dtype": "bfloat16", "hidden_activation": "gelu_pytorch_tanh", "eos_token_id": 1,
        "attention_bias": False, "rope_theta": 1000000, "rope_local_base_freq": 10000,
        "sliding_window_pattern": 6, "attn_logit_softcapping": None,
        "final_logit_softcapping": None}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(TINY / name, folder / name)
    save_file({"model." + name: p.data.contiguous() for name, p in model.named_parameters()},
              folder / "model.safetensors", {"format": "pt"})


def encode(args, folder, prompts):
    listed, out = folder / "prompts.json", folder / "ours.safetensors"
    listed.write_text(json.dumps(prompts))
    subprocess.run([args.program, "encode", "--model", folder, "--prompts", listed, "--backend",
                    args.backend, "--compute", args.compute, "--output", "hidden_states",
                    "--dtype", "float32", "-o", out], check=True, stdout=subprocess.DEVNULL)
    return load_file(out)


def hidden_states(model, ids):
    """All states of one prompt, in float32, at the positions that left padding to 1024 gives it."""
    device = model.embed_tokens.weight.device
    positions = torch.arange(ROWS - len(ids), ROWS, device=device)[None]
    out = model(input_ids=torch.tensor([ids], device=device), position_ids=positions,
                output_hidden_states=True, use_cache=False)
    return torch.stack(out.hidden_states, 0)[:, 0].float().cpu()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=str(ROOT / "build/cuda/bin/prompt-encoder"))
    parser.add_argument("--backend", default="cuda", help="ours; transformers runs where it does")
    parser.add_argument("--compute", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--layers", type=int, default=SIZES["num_hidden_layers"])
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    device = "cuda" if args.backend == "cuda" else "cpu"
    prompts = json.loads((ROOT / "tests/golden/prompts.json").read_text())
    model = make_model(args.layers)
    with tempfile.TemporaryDirectory() as name:
        write_model(pathlib.Path(name), model)
        ours = encode(args, pathlib.Path(name), prompts)
    model = model.to(device)
    ids = [ours[f"p{i}.token_ids"].tolist() for i in range(len(prompts))]
    theirs = torch.cat([hidden_states(model, one) for one in ids], 1)
    want = torch.cat([hidden_states(model.float(), one) for one in ids], 1)
    got = torch.cat([ours[f"p{i}.hidden_states"] for i in range(len(prompts))], 1)
    if got.shape != want.shape:
        sys.exit(f"ours: {tuple(got.shape)}, theirs: {tuple(want.shape)}")

    print(f"{len(prompts)} prompts, {got.shape[1]} tokens; {args.backend}, {args.compute}; "
          f"torch {torch.__version__} on {device}")
    print("| state | ours | transformers bfloat16 | ours / theirs | over |")
    print("| ---: | ---: | ---: | ---: | --- |")
    worst, misses = 0.0, 0
    for s in range(len(want)):
        norm = want[s].norm()
        mine = float((got[s] - want[s]).norm() / norm)
        other = float((theirs[s] - want[s]).norm() / norm)
        measure = mine / other if args.compute == "bfloat16" else mine
        bound = BOUND if args.compute == "bfloat16" else FLOAT32_BOUND
        over = not measure <= bound  # a NaN is over
        misses += over
        worst = max(worst, measure)
        print(f"| {s} | {mine:.2e} | {other:.2e} | {mine / other:.2f} | {'MISS' if over else ''} |")
    print(f"worst {worst:.2g}, bound {bound:g}: {misses} misses")
    sys.exit(1 if misses else 0)


if __name__ == "__main__":
    main()
