#!/usr/bin/env python3
"""What 2, 4 and 8 GPUs should do, from what one H200 was measured to do and from what links take.

    python3 tests/bench/scaling.py

Prints the tables of docs/SCALING.md, which says what was assumed and what the goals are. Each part
of a pass is a function of the number of ranks below; all parts at one rank add up to the measured
time of one GPU, as the rate of the connectors' products is what is left to make it so. Times are in
ms, sizes in bytes. Standard library.
"""
import math

RANKS = [2, 4, 8]

# ---- measured on one H200, bf16, 2026-11-30 (docs/PERFORMANCE.md) ----
PASS_MS = {1: 14.0, 2: 22.3, 8: 74.3, 32: 289.0}  # prompts of 61 and 30 tokens, to embeddings
GEMMA_MS = {61: 6.8, 91: 7.4}                     # by tokens
PRODUCT_FIXED_MS = 4.5e-3                         # what a product takes beside its bytes
READ_BYTES_MS = 4.0e9                             # at which a product reads its weights
# connectors, of a block, 1024 rows; video and audio
ATTENTION_MS = {4096: 35.6e-3, 2048: 25.0e-3}
NORMS_MS = 0.5                                    # norms and RoPE of all 16 blocks
# NCCL in a CUDA graph on 2 H200: bytes of the buffer; for an all-gather, of a rank's piece
ALL_REDUCE_MS = [(0.47e6, 13e-3), (0.94e6, 16e-3), (2.3e6, 31e-3), (8.4e6, 48e-3), (12.6e6, 62e-3)]
ALL_GATHER_MS = [(0.47e6, 13e-3), (0.94e6, 19e-3), (2.3e6, 30e-3), (8.4e6, 57e-3), (12.6e6, 74e-3)]

# ---- assumed; docs/SCALING.md names each ----
STEP_MS = 1.2e-3           # A1: each further step of a ring
PEER_BYTES_MS = 350e6      # A2: kernels of our own over NVLink, of 450e6 a direction
PEER_FIXED_MS = 4e-3       # A2: their launch and the two meetings of the ranks
TILES = [(128, 256, 1.0), (128, 128, 0.85), (64, 256, 0.8), (64, 128, 0.65), (64, 64, 0.5)]  # A3
ATTENTION_ROWS = 128       # A4: query rows of a block of attention; 32 heads
KERNEL_MS = 3e-3           # A5: of a norm that has nothing to do
NORM_KERNELS = 48          # three a block
STATE_MS = 2e-3            # A6: the norm of one of the 49 states
SLOWEST = 1.01             # A7: the slowest card of a group, beside the middle one
GROUP_MS = 0.05            # A8: handing a batch to the ranks and coming together

# ---- the network (engine/MODEL.md): Gemma 3 12B and LTX-2.3 ----
L, D, H, K, E, F = 48, 3840, 16, 8, 256, 15360
STATES, STATES_A_PRODUCT = L + 1, 4
WIDTHS, BLOCKS, ROWS, HEADS = [4096, 2048], 8, 1024, 32
PROCESSORS = 132
GEMMA_BYTES = 2 * L * ((H + 2 * K) * E * D + H * E * D + 3 * F * D)
EXTRACTOR_BYTES = 2 * STATES * D * sum(WIDTHS)
LENGTHS = [61, 30]         # of every two prompts


def on_the_line(points, x):
    """Between the two nearest points; beyond the ends on the last line, below as the first."""
    if x <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        if x <= x1 or (x1, y1) == points[-1]:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


# ---- links ----

def nccl_all_reduce(size, n):
    """A ring moves 2 (n - 1) / n of the buffer over each link, in 2 (n - 1) steps."""
    if n == 1:
        return 0.0
    return on_the_line(ALL_REDUCE_MS, size * 2 * (n - 1) / n) + (2 * (n - 1) - 2) * STEP_MS


def nccl_all_gather(piece, n):
    if n == 1:
        return 0.0
    return on_the_line(ALL_GATHER_MS, piece * (n - 1)) + (n - 2) * STEP_MS


def peer_all_reduce(size, n):
    """The better of: each rank reads all of all others; each sums a part, then reads the rest."""
    if n == 1:
        return 0.0
    return min(PEER_FIXED_MS + (n - 1) * size / PEER_BYTES_MS,
               1.5 * PEER_FIXED_MS + 2 * (n - 1) / n * size / PEER_BYTES_MS)


def peer_all_gather(piece, n):
    if n == 1:
        return 0.0
    return PEER_FIXED_MS + (n - 1) * piece / PEER_BYTES_MS


LINKS = {"NCCL": (nccl_all_reduce, nccl_all_gather), "own": (peer_all_reduce, peer_all_gather)}


# ---- parts of a pass ----

def waves(rows, columns):
    """How long the product's tiles take, in times of one (128, 256) tile on all processors."""
    best = math.inf
    for tile_rows, tile_columns, rate in TILES:
        tiles = math.ceil(rows / tile_rows) * math.ceil(columns / tile_columns)
        one = tile_rows * tile_columns / (128 * 256) / rate
        best = min(best, math.ceil(tiles / PROCESSORS) * one)
    return best


def product(rows, columns, depth, rate, has_tiles):
    """The longer of reading the weights and multiplying; `rate`: operations a ms of the card."""
    arithmetic = 2 * rows * columns * depth / rate
    if has_tiles:
        arithmetic = waves(rows, columns) * PROCESSORS * 2 * 128 * 256 * depth / rate
    return PRODUCT_FIXED_MS + max(2 * columns * depth / READ_BYTES_MS, arithmetic)


def connector_products(tokens, rows, rate, has_tiles=True):
    """In tiles, or as if any number of rows filled the card."""
    total = 0.0
    for W in WIDTHS:
        shapes = [(3 * W + HEADS, W), (W, W), (4 * W, W), (W, 4 * W)]
        total += BLOCKS * sum(product(rows, N, depth, rate, has_tiles) for N, depth in shapes)
        # registers have the first block's q, k, v and gate already
        total += (product(min(tokens, rows), *shapes[0], rate, has_tiles) -
                  product(rows, *shapes[0], rate, has_tiles))
    return total


def connector_rest(rows):
    blocks = HEADS * math.ceil(rows / ATTENTION_ROWS)
    full = math.ceil(HEADS * ROWS / ATTENTION_ROWS / PROCESSORS)
    attention = BLOCKS * sum(ATTENTION_MS[W] for W in WIDTHS)
    attention *= math.ceil(blocks / PROCESSORS) / full
    fixed = NORM_KERNELS * KERNEL_MS
    return attention, fixed + (NORMS_MS - fixed) * rows / ROWS


def gemma_weights(tokens, n):
    """What is shared out: reading the weights, and what more tokens add to it."""
    per_token = (GEMMA_MS[91] - GEMMA_MS[61]) / 30
    return (GEMMA_BYTES / READ_BYTES_MS + per_token * (tokens - 61)) / n


def extractor(n):
    products = math.ceil(STATES / STATES_A_PRODUCT)
    return EXTRACTOR_BYTES / READ_BYTES_MS / n, products * PRODUCT_FIXED_MS + STATES * STATE_MS


def sharded(tokens, prompts, n, links, rate):
    """The parts of one pass of all ranks over all prompts, in order."""
    all_reduce, all_gather = LINKS[links]
    rows = prompts * ROWS // n
    shared, fixed = extractor(n)
    attention, norms = connector_rest(rows)
    exchange = sum(BLOCKS * all_gather(2 * 2 * W * rows, n) for W in WIDTHS)
    return {
        "Gemma, weights": gemma_weights(tokens, n),
        "Gemma, fixed": GEMMA_MS[61] - gemma_weights(61, 1),
        "Gemma, all-reduces": 2 * L * all_reduce(4 * tokens * D, n),
        "extractor": shared + fixed + all_gather(4 * tokens * sum(WIDTHS) / n, n),
        "connectors, products": connector_products(tokens, rows, rate),
        "connectors, attention and norms": attention + norms,
        "connectors, k and v": exchange,
        "embeddings to all": all_gather(2 * rows * sum(WIDTHS), n),
    }


def calibrate():
    """The rate at which one GPU's parts add up to what it was measured to take."""
    low, high = 1e11, 2e12
    for _ in range(60):
        middle = (low + high) / 2
        if sum(sharded(61, 1, 1, "NCCL", middle).values()) > PASS_MS[1]:
            low = middle
        else:
            high = middle
    return high


def one_gpu(prompts):
    return on_the_line(sorted(PASS_MS.items()), prompts)


def replicated(prompts, n):
    """The busiest rank's pass. Up to a prompt a rank it is the long one's."""
    return one_gpu(math.ceil(prompts / n)) * (SLOWEST if n > 1 else 1.0) + (n > 1) * GROUP_MS


def tokens_of(prompts):
    return sum(LENGTHS[i % len(LENGTHS)] for i in range(prompts))


# ---- tables ----

def table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("| --- |" + " ---: |" * (len(head) - 1))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def ms(value):
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def verdict(is_met):
    return "met" if is_met else "missed"


def print_parts(rate):
    for links in LINKS:
        runs = [sharded(61, 1, n, links, rate) for n in [1] + RANKS]
        rows = [[part] + [ms(run[part]) for run in runs] for part in runs[0]]
        rows.append(["all, with the group's own"] +
                    [ms(sum(run.values()) + (n > 1) * GROUP_MS)
                     for n, run in zip([1] + RANKS, runs)])
        rows.append(["goal"] + [ms(PASS_MS[1])] + [ms(PASS_MS[1] * (1 / n + 0.15)) for n in RANKS])
        print(f"One prompt, sharded, ms; collectives: {links}\n")
        table(["part", "1 GPU"] + [f"{n} GPUs" for n in RANKS], rows)


def print_links():
    sizes = [("all-reduce of 61 tokens", 0, 4 * 61 * D, 1),
             ("all-gather of video's k and v", 1, 2 * 2 * WIDTHS[0] * ROWS, 0),
             ("all-gather of audio's k and v", 1, 2 * 2 * WIDTHS[1] * ROWS, 0)]
    rows = []
    for name, which, size, is_whole in sizes:
        for links, ops in LINKS.items():
            rows.append([f"{name}, {size / 1e6:.2f} MB, {links}"] +
                        [f"{1e3 * ops[which](size if is_whole else size / n, n):.0f}"
                         for n in RANKS])
    print("A collective, us\n")
    table(["what"] + [f"{n} GPUs" for n in RANKS], rows)


def print_goals(rate):
    rows = []
    for n in RANKS:
        goal = PASS_MS[1] * (1 / n + 0.15)
        for links in LINKS:
            got = sum(sharded(61, 1, n, links, rate).values()) + GROUP_MS
            rows.append([f"1 prompt sharded on {n}, {links}", f"{ms(got)} ms", f"{ms(goal)} ms",
                         verdict(got <= goal)])
    got = replicated(2, 2)
    rows.append(["pair on 2, a prompt a rank", f"{ms(got)} ms", f"{ms(1.05 * PASS_MS[1])} ms",
                 verdict(got <= 1.05 * PASS_MS[1])])
    for n in RANKS:
        rate_n = 2 * n / replicated(2 * n, n) * 1e3
        for prompts, name in [(2, "a pair"), (2 * n, f"the same {2 * n}")]:
            goal = 0.95 * n * prompts / one_gpu(prompts) * 1e3
            rows.append([f"{2 * n} prompts on {n}, beside {name} on one", f"{rate_n:.0f}/s",
                         f"{goal:.0f}/s", verdict(rate_n >= goal)])
    table(["work", "predicted", "goal", ""], rows)


def print_levers(rate):
    """Kernels of our own, and then one thing after another."""
    rows = [["NCCL"], ["own collectives"], [".. and k and v travel unseen"],
            [".. and the connectors' products fill the card"], [".. and Gemma's fixed cost halved"]]
    for n in RANKS:
        parts = sharded(61, 1, n, "own", rate)
        total = sum(parts.values()) + GROUP_MS
        rows[0].append(ms(sum(sharded(61, 1, n, "NCCL", rate).values()) + GROUP_MS))
        rows[1].append(ms(total))
        total -= parts["connectors, k and v"]
        rows[2].append(ms(total))
        total -= parts["connectors, products"] - connector_products(61, ROWS // n, rate, False)
        rows[3].append(ms(total))
        rows[4].append(ms(total - parts["Gemma, fixed"] / 2))
    rows.append(["goal"] + [ms(PASS_MS[1] * (1 / n + 0.15)) for n in RANKS])
    print("One prompt, sharded, step by step, ms\n")
    table([""] + [f"{n} GPUs" for n in RANKS], rows)


def print_batches():
    rows = []
    for prompts in [2, 4, 8, 16, 32, 64]:
        cells = [f"{ms(replicated(prompts, n))} ms, {prompts / replicated(prompts, n) * 1e3:.0f}/s"
                 for n in [1] + RANKS if prompts <= 32 or n > 1]
        rows.append([str(prompts)] + ["" for _ in range(4 - len(cells))] + cells)
    print("Replicated\n")
    table(["prompts", "1 GPU"] + [f"{n} GPUs" for n in RANKS], rows)


def print_routes(rate):
    rows = []
    for n in RANKS:
        for prompts in range(1, n + 1):
            rows.append([f"{prompts} on {n}", ms(replicated(prompts, n))] +
                        [ms(sum(sharded(tokens_of(prompts), prompts, n, links, rate).values()) +
                            GROUP_MS) for links in LINKS])
    print("Either way, ms\n")
    table(["prompts on GPUs", "replicated"] + [f"sharded, {links}" for links in LINKS], rows)


def print_budget(rate):
    """How long an all-reduce might take if the goal is to be met, all else as predicted."""
    rows = []
    for n in RANKS:
        for links in LINKS:
            parts = sharded(61, 1, n, links, rate)
            rest = sum(parts.values()) - parts["Gemma, all-reduces"] + GROUP_MS
            spare = (PASS_MS[1] * (1 / n + 0.15) - rest) / (2 * L) * 1e3
            rows.append([f"{n} GPUs, all-gathers: {links}",
                         f"{parts['Gemma, all-reduces'] / (2 * L) * 1e3:.1f}", f"{spare:.1f}"])
    print("An all-reduce of 61 tokens, us\n")
    table(["", "predicted", "would meet the goal"], rows)


def main():
    rate = calibrate()
    print(f"Connectors' products at {rate / 1e9:.0f} TFLOP/s in full tiles\n")
    print_goals(rate)
    print_parts(rate)
    print_links()
    print_levers(rate)
    print_batches()
    print_routes(rate)


if __name__ == "__main__":
    main()
