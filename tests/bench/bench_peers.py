#!/usr/bin/env python3
"""How fast the CPU backend is beside llama.cpp and transformers: the same GGUF file, the same
prompts, the same number of threads, in one run in which all take turns. Numbers, not verdicts.

    python3 -m venv .venv && .venv/bin/pip install -r tests/reference/requirements.txt \\
        llama-cpp-python
    .venv/bin/python tests/bench/bench_peers.py models/gemma-3-270m-q4_k_m.gguf --threads 2

What each computes, for prompts of token ids:
  ours          all hidden states, in float32, from weights dequantised at load (build's
                bench_encode), computed in float32 or bfloat16
  transformers  Gemma3TextModel with output_hidden_states, no cache, from the same dequantised
                weights in float32 or bfloat16. All prompts of a call are of one length, so it
                never pads: its best case.
  llama.cpp     the last hidden state alone (embeddings without pooling, causal), in float32, from
                the weights as they are quantised in the file (activations rounded to 8 bits);
                built from source for this processor. It cannot leave out the logits of every token,
                which are more work than the layers: "llama.cpp embeddings". "llama.cpp prompt"
                asks for the logits of each prompt's last token instead, which is nearly the layers
                alone and the time it would need if it could; its states cannot be read.

Every player is a process that has its model loaded. A turn is one call to warm up and CALLS that
count. The table gives each player's median and how many times as long as ours in float32 and
bfloat16 it takes; `norm` is that of the last state, and shows that all computed the same.
"""
import argparse
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHAPES = [(61, 1), (512, 1), (61, 8)]  # tokens of a prompt, prompts of a call
MAX_PROMPTS = 8
COLUMNS = ["ours float32", "ours bfloat16", "transformers float32", "transformers bfloat16",
           "llama.cpp embeddings", "llama.cpp prompt"]


def prompt(n_tokens, vocabulary):
    """The ids of bench_encode.c."""
    return [2] + [(7919 * i) % vocabulary for i in range(1, n_tokens)]


def transformers_player(path, threads, compute):
    sys.path.insert(0, str(ROOT / "tests/reference"))
    import torch

    import compare
    torch.set_num_threads(threads)
    model = compare.load_reference(path).to(getattr(torch, compute))

    def call(n_tokens, n_prompts):
        ids = torch.tensor([prompt(n_tokens, model.config.vocab_size)] * n_prompts)
        start = time.perf_counter()
        with torch.no_grad():
            out = model(input_ids=ids, output_hidden_states=True, use_cache=False)
        ms = (time.perf_counter() - start) * 1e3
        return ms, float(out.last_hidden_state[-1].float().norm())

    return call


def llama_player(path, threads, wanted):
    import llama_cpp
    import numpy as np

    llama_cpp.llama_backend_init()
    options = llama_cpp.llama_context_default_params()
    options.n_ctx = options.n_batch = options.n_ubatch = 1024
    options.n_seq_max = MAX_PROMPTS
    options.kv_unified = True  # else each of the MAX_PROMPTS prompts has a part of n_ctx only
    options.n_threads = options.n_threads_batch = threads
    options.embeddings = wanted == "embeddings"
    options.pooling_type = llama_cpp.LLAMA_POOLING_TYPE_NONE
    model = llama_cpp.llama_model_load_from_file(
        path.encode(), llama_cpp.llama_model_default_params())
    context = llama_cpp.llama_init_from_model(model, options)
    memory = llama_cpp.llama_get_memory(context)
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    width = llama_cpp.llama_model_n_embd(model)
    batch = llama_cpp.llama_batch_init(options.n_batch, 0, MAX_PROMPTS)

    def call(n_tokens, n_prompts):
        ids = prompt(n_tokens, vocabulary)
        batch.n_tokens = n_tokens * n_prompts
        for i in range(batch.n_tokens):
            batch.token[i] = ids[i % n_tokens]
            batch.pos[i] = i % n_tokens
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = i // n_tokens
            batch.logits[i] = options.embeddings or i % n_tokens == n_tokens - 1
        llama_cpp.llama_memory_clear(memory, False)
        start = time.perf_counter()
        if llama_cpp.llama_decode(context, batch) != 0:
            sys.exit("llama_decode failed")
        llama_cpp.llama_synchronize(context)
        ms = (time.perf_counter() - start) * 1e3
        if not options.embeddings:
            return ms, float("nan")
        states = llama_cpp.llama_get_embeddings(context)
        states = np.ctypeslib.as_array(states, shape=(batch.n_tokens, width))
        return ms, float(np.linalg.norm(states[-n_tokens:]))

    return call


def play(args):
    """One player: answers every `TOKENS PROMPTS` with its milliseconds and the norm."""
    kind, _, what = args.play.partition(" ")
    player = transformers_player if kind == "transformers" else llama_player
    call = player(args.model, args.threads, what)
    print("ready", flush=True)
    for line in sys.stdin:
        ms, norm = call(*map(int, line.split()))
        print(f"{ms:.3f} {norm:.6g}", flush=True)


def start_player(args, name):
    kind, _, what = name.partition(" ")
    if kind == "ours":
        command = [str(pathlib.Path(args.bin) / "bench_encode"), args.model, str(args.threads),
                   "-", what]
    else:
        command = [sys.executable, __file__, args.model, "--threads", str(args.threads), "--play",
                   name]
    player = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=None if args.verbose else subprocess.DEVNULL, text=True)
    if player.stdout.readline().strip() != "ready":
        sys.exit(f"{name} did not start (--verbose says more)")
    return player


def take_turn(player, n_tokens, n_prompts, calls):
    answers = []
    for _ in range(calls + 1):
        player.stdin.write(f"{n_tokens} {n_prompts}\n")
        player.stdin.flush()
        answers.append([float(x) for x in player.stdout.readline().split()])
    return [ms for ms, _ in answers[1:]], answers[0][1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a Gemma 3 GGUF file")
    parser.add_argument("--bin", default=str(ROOT / "build/release/bin"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument("--only", help="players whose name begins so, between commas")
    parser.add_argument("--verbose", action="store_true", help="show what the players say")
    parser.add_argument("--play", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.play:
        play(args)
        return
    names = [n for n in COLUMNS
             if args.only is None or n.startswith(tuple(args.only.split(",")))]
    players = {name: start_player(args, name) for name in names}
    print("| tokens x prompts | player | ms | / ours float32 | / ours bfloat16 | norm |")
    print("| ---: | --- | ---: | ---: | ---: | ---: |")
    for n_tokens, n_prompts in SHAPES:
        times, norms = {name: [] for name in names}, {}
        for _ in range(args.rounds):
            for name in names:
                ms, norms[name] = take_turn(players[name], n_tokens, n_prompts, args.calls)
                times[name] += ms
        median = {name: statistics.median(times[name]) for name in names}
        for name in names:
            ratios = [f"{median[name] / median[mine]:.2f}" if mine in median else "-"
                      for mine in COLUMNS[:2]]
            print(f"| {n_tokens} x {n_prompts} | {name} | {median[name]:.1f} | {ratios[0]} | "
                  f"{ratios[1]} | {norms[name]:.6g} |", flush=True)
    for player in players.values():
        player.stdin.close()
        player.wait()


if __name__ == "__main__":
    main()
