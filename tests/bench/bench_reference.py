#!/usr/bin/env python3
"""How fast Gemma 3 12B is beside transformers on the same GPU, in one run in which both take turns.
Numbers, not verdicts. Random weights on both sides (their own each), bfloat16; no files needed.

    bench_reference.py [--program build/cuda/bin/prompt-encoder] [--rounds 3] [--calls 15]

What each computes, from token ids to all hidden states in the GPU's memory, for one prompt of 61
tokens and for a pair of 61 and 30:
  padded   Gemma3TextModel, prompts padded on the left to 1024 tokens with an attention mask, as
           LTX-2's own code calls it (without the cache of keys and values, which it fills for
           nothing)
  eager    the same model, prompts padded to the longer one alone (a single one: not at all)
  graph    that once more, as a replayed CUDA graph
  ours     `prompt-encoder bench`: a process a round, which loads, measures and ends

All of transformers' ways run in this process, whose model stays on the GPU while ours runs. A turn
is two calls to warm up and CALLS that count. `differs` says how far a way's last state is from
that of eager (relative, Frobenius): that all compute the same. With --tiny a small model on the
CPU, where what a graph would replay is called: to try the script itself.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

import torch
from transformers import Gemma3TextConfig, Gemma3TextModel

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROWS = 1024
# the prompts' tokens, and what `prompt-encoder bench` calls that without an LTX checkpoint
SCENES = [((61,), "1 prompt"), ((61, 30), "pair")]
TINY = dict(hidden_size=128, intermediate_size=320, num_hidden_layers=7, num_attention_heads=4,
            num_key_value_heads=2, head_dim=64, query_pre_attn_scalar=64, sliding_window=64,
            vocab_size=512)
FULL = dict(hidden_size=3840, intermediate_size=15360, num_hidden_layers=48,
            num_attention_heads=16, num_key_value_heads=8, head_dim=256,
            query_pre_attn_scalar=256, sliding_window=1024, vocab_size=16384)


def make_model(device, sizes):
    config = Gemma3TextConfig(
        **sizes, max_position_embeddings=131072,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}})
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        return Gemma3TextModel(config).eval()


def inputs(lengths, n_rows, vocabulary, device):
    """Ids [B, n_rows] padded on the left, and which are real; None: all are."""
    ids = torch.zeros(len(lengths), n_rows, dtype=torch.int64)
    for b, n in enumerate(lengths):
        for t in range(n):
            ids[b, n_rows - n + t] = (2 + 7919 * (t + 131 * b)) % vocabulary
    real = torch.arange(n_rows)[None] >= n_rows - torch.tensor(lengths)[:, None]
    return ids.to(device), None if bool(real.all()) else real.to(device)


def masks(real, n_rows, window):
    """What transformers would make of `real`, for both kinds of layers: nothing in a graph may ask
    the host. A window as long as the prompt changes nothing."""
    if n_rows > window:
        sys.exit("graph: a prompt longer than the window")
    if real is None:
        return {"full_attention": None, "sliding_attention": None}
    causal = torch.ones(n_rows, n_rows, dtype=torch.bool, device=real.device).tril()
    mask = causal[None, None] & real[:, None, None, :]
    mask |= ~real[:, None, :, None]  # a padded row sees something, else it is NaN
    return {"full_attention": mask, "sliding_attention": mask}


class Way:
    """One way to call the model for some prompts."""

    def __init__(self, model, lengths, kind):
        device = model.embed_tokens.weight.device
        n_rows = ROWS if kind == "padded" else max(lengths)
        self.lengths = lengths
        self.model = model
        self.ids, self.mask = inputs(lengths, n_rows, model.config.vocab_size, device)
        self.replay = None
        if kind == "graph":
            self.mask = masks(self.mask, n_rows, model.config.sliding_window)
            if device.type == "cuda":
                self.capture()

    def forward(self):
        return self.model(input_ids=self.ids, attention_mask=self.mask, output_hidden_states=True,
                          use_cache=False).hidden_states

    def capture(self):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.forward()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            states = self.forward()

        def replay():
            graph.replay()
            return states

        self.replay = replay

    def call(self):
        return self.replay() if self.replay else self.forward()

    def last_state(self):
        """Of the real tokens of all prompts."""
        state = self.call()[-1].float()
        return torch.cat([state[b, -n:] for b, n in enumerate(self.lengths)])

    def turn(self, calls):
        """Milliseconds of each call."""
        wait = torch.cuda.synchronize if self.ids.is_cuda else lambda: None
        times = []
        for i in range(calls + 2):
            wait()
            begin = time.perf_counter()
            self.call()
            wait()
            if i >= 2:
                times.append((time.perf_counter() - begin) * 1e3)
        return times


def turn_of_ours(args):
    """The report of one process."""
    target = ["--model", "random:gemma-3-tiny"] if args.tiny else \
        ["--model", "random:gemma-3-12b", "--backend", "cuda"]
    command = [args.program, "bench", *target, "--compute", "bfloat16", "--runs",
               str(args.our_calls), "--json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def print_scene(name, lengths, ways, times, ours, report):
    mine = statistics.median(ours)
    eager = ways["eager"].last_state()
    for kind, way in ways.items():
        differs = float((way.last_state() - eager).norm() / eager.norm())
        ms = statistics.median(times[kind])
        print(f"| {name} | {'+'.join(map(str, lengths))} | {kind} | {ms:.2f} | {min(times[kind]):.2f}"
              f" | {ms / mine:.2f} | {differs:.1e} |")
    floor = next(s for s in report["scenes"] if s["name"] == name)["floor_ms"]
    print(f"| {name} | {'+'.join(map(str, lengths))} | ours | {mine:.2f} | {min(ours):.2f} | 1 | "
          f"floor {floor:.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=str(ROOT / "build/cuda/bin/prompt-encoder"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=15, help="of each of transformers' ways")
    parser.add_argument("--our-calls", type=int, default=40, help="of ours, at least 5")
    parser.add_argument("--seconds", type=float, default=600,
                        help="no further round begins after so many")
    parser.add_argument("--tiny", action="store_true", help="a small model on the CPU")
    args = parser.parse_args()
    begin = time.perf_counter()
    torch.set_grad_enabled(False)
    device = "cpu" if args.tiny else "cuda"
    model = make_model(device, TINY if args.tiny else FULL)
    scenes = []
    for lengths, name in SCENES:
        ways = {}
        for kind in ("padded", "eager", "graph"):
            try:
                ways[kind] = Way(model, lengths, kind)
            except RuntimeError as why:
                print(f"{name}, {kind}: {why}")
        scenes.append((name, lengths, ways, {kind: [] for kind in ways}, []))
    where = torch.cuda.get_device_name() if device == "cuda" else "the CPU"
    print(f"torch {torch.__version__} on {where}; ready after {time.perf_counter() - begin:.0f} s",
          flush=True)
    for i in range(args.rounds):
        if i > 0 and time.perf_counter() - begin > args.seconds:
            break
        for name, lengths, ways, times, ours in scenes:
            for kind, way in ways.items():
                times[kind] += way.turn(args.calls)
                print(f"round {i}: {name}, {kind}: {statistics.median(times[kind]):.2f} ms",
                      flush=True)
        report = turn_of_ours(args)
        for name, lengths, ways, times, ours in scenes:
            found = next(s for s in report["scenes"] if s["name"] == name)
            ours.append(found["median_ms"])
            print(f"round {i}: {name}, ours: {ours[-1]:.2f} ms", flush=True)
    print(f"{len(scenes[0][4])} rounds, {time.perf_counter() - begin:.0f} s in all; this device "
          f"reads {report['bytes_per_s'] / 1e12:.2f} TB/s, multiplies at "
          f"{report['operations_per_s'] / 1e12:.0f} TFLOP/s")
    print("| prompts | tokens | | median ms | shortest | / ours | differs |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: |")
    for name, lengths, ways, times, ours in scenes:
        print_scene(name, lengths, ways, times, ours, report)


if __name__ == "__main__":
    main()
