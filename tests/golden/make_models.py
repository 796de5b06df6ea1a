"""Writes tests/golden/gemma3-tiny and gemma4-tiny again in every other form that such a model comes in,
so that each reader is held to the same reference vectors.

    python3 tests/golden/make_models.py FOLDER      (Python's standard library only)

Gemma 3:
    sharded/             three shards and model.safetensors.index.json
    text-only/           keys model.*, a flat config of model_type gemma3_text
    new-rope/            keys model.language_model.*, rope_parameters and layer_types in the config
    f32/                 the same values as float32
    qscale64/            the same weights, but query_pre_attn_scalar 64: another model
    packed3.safetensors  all of it in one file, keys as in the directory
    tiny.gguf            BF16 matrices, F32 norms with the 1 added, the factor in attention.scale
    tiny-keylength.gguf  the same without attention.scale: what readers must make of key_length (64),
                         so it agrees with qscale64/
    mixed.gguf           Q8_0, BF16 and F32 matrices, three of them in one layer's q, k and v; 1364 rows
                         of embeddings, fewer than the 1367 tokens of tokenizer.json
    mixed-00001-of-00003.gguf ...  the same in three files, the first without tensors
    mixed-values/        what the numbers of mixed.gguf are, as float32

Gemma 4:
    packed4-flat.safetensors  in one file as LTX's packer writes it, but the tokenizer int8, the tensors
                              in another order, and the weights of an LTX projection among them
    packed4-hf.safetensors    in one file under the directory's own keys
    sharded4/                 three shards and model.safetensors.index.json
    text-only4/               keys model.*, a flat config of model_type gemma4_unified_text, layers'
                              numbers in per_layer_config with zeros before them
    global4/                  global_head_dim and num_global_key_value_heads for per_layer_config
"""
import json
import pathlib
import shutil
import struct
import sys

TINY = pathlib.Path(__file__).parent / "gemma3-tiny"
TINY4 = pathlib.Path(__file__).parent / "gemma4-tiny"
DECODER, DECODER4 = "language_model.model.", "model.language_model."
SIDE_FILES = ["tokenizer.json", "tokenizer_config.json", "processor_config.json",
              "preprocessor_config.json"]


def read_safetensors(path):
    data = path.read_bytes()
    size, = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[8 + size:][slice(*t["data_offsets"])])
            for name, t in header.items()}


def write_safetensors(path, tensors, metadata=None):
    header, at = {"__metadata__": {"format": "pt", **(metadata or {})}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text
                     + b"".join(data for _, _, data in tensors.values()))


def write_directory(folder, config, tensors, tiny=TINY):
    folder.mkdir(parents=True, exist_ok=True)
    for name in SIDE_FILES:
        shutil.copyfile(tiny / name, folder / name)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    if tensors is not None:
        write_safetensors(folder / "model.safetensors", tensors)


def write_sharded(folder, config, tensors, tiny=TINY):
    write_directory(folder, config, None, tiny)
    names, weight_map = list(tensors), {}
    for i in range(3):
        shard = f"model-{i + 1:05}-of-00003.safetensors"
        part = names[len(names) * i // 3:len(names) * (i + 1) // 3]
        write_safetensors(folder / shard, {name: tensors[name] for name in part})
        weight_map.update(dict.fromkeys(part, shard))
    total = sum(len(data) for _, _, data in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def write_packed(path, config, tensors, tiny, tokenizer_type):
    """One file for the whole directory, as LTX's packer makes it."""
    assets = {f"hf_asset__{name}": ("U8", (tiny / name).read_bytes()) for name in SIDE_FILES
              if name != "tokenizer.json"}
    assets["tokenizer_json"] = (tokenizer_type, (tiny / "tokenizer.json").read_bytes())
    write_safetensors(path, {**tensors, **{name: (dtype, [len(data)], data)
                                           for name, (dtype, data) in assets.items()}},
                      {"gemma_config": json.dumps(config)})


def renamed(tensors, **prefixes):
    """The tensors whose names begin with a key of `prefixes`, with that beginning replaced."""
    out = {}
    for name, tensor in tensors.items():
        for old, new in prefixes.items():
            if name.startswith(old):
                out[new + name[len(old):]] = tensor
    return out


def bf16_to_f32(data):
    out = bytearray(2 * len(data))
    out[2::4], out[3::4] = data[0::2], data[1::2]
    return bytes(out)


def one_added(data):
    values = struct.unpack(f"<{len(data) // 2}f", bf16_to_f32(data))
    return struct.pack(f"<{len(values)}f", *(1 + v for v in values))


def rounded_to_q8_0(data):
    """float32 bytes as Q8_0 blocks, and the float32 bytes that these mean."""
    values = struct.unpack(f"<{len(data) // 4}f", data)
    blocks, meant = [], []
    for at in range(0, len(values), 32):
        block = values[at:at + 32]
        scale, = struct.unpack("<e", struct.pack("<e", max(map(abs, block)) / 127))
        numbers = [max(-127, min(127, round(v / scale))) if scale else 0 for v in block]
        blocks.append(struct.pack("<e32b", scale, *numbers))
        meant += [scale * n for n in numbers]  # 11 bits times 8: exact
    return b"".join(blocks), struct.pack(f"<{len(meant)}f", *meant)


def text_only_config(config):
    return {"architectures": ["Gemma3ForCausalLM"], "eos_token_id": config["eos_token_id"],
            **config["text_config"], "torch_dtype": config["torch_dtype"]}


def new_rope_config(config):
    config = json.loads(json.dumps(config))
    text = config["text_config"]
    scaling, pattern = text.pop("rope_scaling"), text.pop("sliding_window_pattern")
    text["layer_types"] = ["sliding_attention" if (i + 1) % pattern else "full_attention"
                           for i in range(text["num_hidden_layers"])]
    text["rope_parameters"] = {
        "full_attention": {"rope_theta": text.pop("rope_theta"), **scaling},
        "sliding_attention": {"rope_theta": text.pop("rope_local_base_freq"),
                              "rope_type": "default"}}
    config["dtype"] = config.pop("torch_dtype")
    return config


def text_only_config4(config):
    text = json.loads(json.dumps(config["text_config"]))
    text["per_layer_config"] = {f"{int(i):03}": v for i, v in text["per_layer_config"].items()}
    return {**text, "gemma_version": config["gemma_version"]}


def global_config4(config):
    config = json.loads(json.dumps(config))
    text = config["text_config"]
    layer, = text.pop("per_layer_config").values()
    text["global_head_dim"] = layer["head_dim"]
    text["num_global_key_value_heads"] = layer["num_key_value_heads"]
    return config


# --- GGUF ---------------------------------------------------------------------------------------

U16, U32, I32, F32, BOOL, STRING, ARRAY = 2, 4, 5, 6, 7, 8, 9
GGML_F32, GGML_Q8_0, GGML_BF16 = 0, 8, 30
ALIGNMENT = 32
GGUF_NAMES = {
    "embed_tokens": "token_embd", "norm": "output_norm", "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
NORMAL, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 3, 4, 5, 6


def gguf_string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf_value(kind, value):
    if kind == STRING:
        return gguf_string(value)
    return struct.pack({U16: "<H", U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}[kind], value)


def gguf_key(key, kind, value):
    if isinstance(value, list):
        return (gguf_string(key) + struct.pack("<IIQ", ARRAY, kind, len(value))
                + b"".join(gguf_value(kind, v) for v in value))
    return gguf_string(key) + struct.pack("<I", kind) + gguf_value(kind, value)


def gguf_tensor_name(name):
    name = name.removesuffix(".weight")
    if name.startswith("layers."):
        _, layer, name = name.split(".", 2)
        return f"blk.{layer}.{GGUF_NAMES[name]}.weight"
    return f"{GGUF_NAMES[name]}.weight"


def gguf_vocabulary(n_rows):
    """Texts, scores and types. SentencePiece ranks a pair by the score of the token it makes, the
    merges rank each pair: a token's score is that of its best pair. Where all pairs of a token
    follow each other in the list, as they do but for runs of line breaks, the order is the same."""
    tokenizer = json.loads((TINY / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    texts = [None] * len(vocabulary)
    for text, i in vocabulary.items():
        texts[i] = text
    added = {a["id"]: a for a in tokenizer["added_tokens"]}
    best = {}
    for rank, (left, right) in enumerate(tokenizer["model"]["merges"]):
        best.setdefault(left + right, rank)
    scores, types = [], []
    for i, text in enumerate(texts):
        byte = len(text) == 6 and text.startswith("<0x") and text.endswith(">")
        if i in added:
            types.append(CONTROL if added[i]["special"] else USER_DEFINED)
        else:
            types.append(BYTE if byte else NORMAL)
        scores.append(0.0 if byte else -1000.0 if i in added else -float(best.get(text, 10000 + i)))
    for i in range(len(texts), n_rows):  # as llama.cpp's converter fills up the embedding's rows
        texts.append(f"[PAD{i}]")
        scores.append(-1000.0)
        types.append(UNUSED)
    return texts, scores, types


def gguf_keys(config, with_scale):
    c = config["text_config"]
    texts, scores, types = gguf_vocabulary(c["vocab_size"])
    keys = [
        ("general.architecture", STRING, "gemma3"),
        ("general.name", STRING, "gemma3-tiny"),
        ("general.tags", STRING, ["test", "random weights"]),
        ("gemma3.context_length", U32, c["max_position_embeddings"]),
        ("gemma3.embedding_length", U32, c["hidden_size"]),
        ("gemma3.block_count", U32, c["num_hidden_layers"]),
        ("gemma3.feed_forward_length", U32, c["intermediate_size"]),
        ("gemma3.attention.head_count", U32, c["num_attention_heads"]),
        ("gemma3.attention.head_count_kv", U32, c["num_key_value_heads"]),
        ("gemma3.attention.layer_norm_rms_epsilon", F32, c["rms_norm_eps"]),
        ("gemma3.attention.key_length", U32, c["head_dim"]),
        ("gemma3.attention.value_length", U32, c["head_dim"]),
        ("gemma3.attention.sliding_window", U32, c["sliding_window"]),
        ("gemma3.rope.freq_base", F32, c["rope_theta"]),
        ("gemma3.rope.scaling.type", STRING, "linear"),
        ("gemma3.rope.scaling.factor", F32, c["rope_scaling"]["factor"]),
        ("tokenizer.ggml.model", STRING, "llama"),
        ("tokenizer.ggml.pre", STRING, "default"),
        ("tokenizer.ggml.tokens", STRING, texts),
        ("tokenizer.ggml.scores", F32, scores),
        ("tokenizer.ggml.token_type", I32, types),
        ("tokenizer.ggml.bos_token_id", U32, 2),
        ("tokenizer.ggml.eos_token_id", U32, 1),
        ("tokenizer.ggml.unknown_token_id", U32, 3),
        ("tokenizer.ggml.padding_token_id", U32, 0),
        ("tokenizer.ggml.add_bos_token", BOOL, True),
        ("tokenizer.ggml.add_eos_token", BOOL, False),
        ("tokenizer.ggml.add_space_prefix", BOOL, False),
    ]
    if with_scale:
        keys.append(("gemma3.attention.scale", F32, c["query_pre_attn_scalar"] ** -0.5))
    return keys


def write_gguf(path, keys, tensors):
    """`tensors`: GGUF name to (ggml type, shape, bytes)."""
    infos, blobs, at = [], [], 0
    for name, (kind, shape, data) in tensors.items():
        infos.append(gguf_string(name)
                     + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, at))
        blobs.append(data + bytes(-len(data) % ALIGNMENT))
        at += len(blobs[-1])
    head = (b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(keys))
            + b"".join(gguf_key(*key) for key in keys) + b"".join(infos))
    path.write_bytes(head + bytes(-len(head) % ALIGNMENT) + b"".join(blobs))


def gguf_tensors(tensors):
    """As the usual converters write them: BF16 matrices, F32 norms with the 1 added."""
    return {gguf_tensor_name(name): (GGML_F32, shape, one_added(data)) if len(shape) == 1
            else (GGML_BF16, shape, data)
            for name, (_, shape, data) in renamed(tensors, **{DECODER: ""}).items()}


def write_split_gguf(folder, stem, keys, tensors):
    """In three files, the first with the settings alone (gguf-split --no-tensor-first-split)."""
    names = list(tensors)
    cuts = [0, 0, len(names) // 3, len(names)]
    for i in range(3):
        split = [("split.no", U16, i), ("split.count", U16, 3),
                 ("split.tensors.count", I32, len(names))]
        write_gguf(folder / f"{stem}-{i + 1:05}-of-00003.gguf", (keys if i == 0 else []) + split,
                   {name: tensors[name] for name in names[cuts[i]:cuts[i + 1]]})


def write_mixed(out, config, tensors):
    """The same model in the types that quantised files mix, and its values as a directory."""
    config = json.loads(json.dumps(config))
    rows = config["text_config"]["vocab_size"] = 1364
    mixed, values = gguf_tensors(tensors), {}
    for name, (dtype, shape, data) in renamed(tensors, **{DECODER: ""}).items():
        gguf_name = gguf_tensor_name(name)
        data = bf16_to_f32(data)
        if gguf_name == "token_embd.weight":
            shape, data = [rows, shape[1]], data[:4 * rows * shape[1]]
        if gguf_name.endswith("attn_v.weight"):
            mixed[gguf_name] = (GGML_F32, shape, data)
        elif len(shape) == 2 and not gguf_name.endswith("attn_k.weight"):
            blocks, data = rounded_to_q8_0(data)
            mixed[gguf_name] = (GGML_Q8_0, shape, blocks)
        values[DECODER + name] = ("F32", shape, data)
    keys = gguf_keys(config, with_scale=True)
    write_gguf(out / "mixed.gguf", keys, mixed)
    write_split_gguf(out, "mixed", keys, mixed)
    write_directory(out / "mixed-values", config, values)


def write_gemma4(out):
    config = json.loads((TINY4 / "config.json").read_text())
    tensors = read_safetensors(TINY4 / "model.safetensors")
    flat = renamed(tensors, **{DECODER4: "model.", "model.embed_vision.": "multi_modal_projector.",
                               "model.embed_audio.": "audio_projector."})
    flat["text_embedding_projection.video_aggregate_embed.bias"] = ("F32", [2], bytes(8))
    write_packed(out / "packed4-flat.safetensors", config, dict(reversed(flat.items())), TINY4, "I8")
    write_packed(out / "packed4-hf.safetensors", config, tensors, TINY4, "U8")
    write_sharded(out / "sharded4", config, tensors, TINY4)
    write_directory(out / "text-only4", text_only_config4(config),
                    renamed(tensors, **{DECODER4: "model."}), TINY4)
    write_directory(out / "global4", global_config4(config), tensors, TINY4)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    config = json.loads((TINY / "config.json").read_text())
    tensors = read_safetensors(TINY / "model.safetensors")

    write_sharded(out / "sharded", config, tensors)
    write_directory(out / "text-only", text_only_config(config),
                    renamed(tensors, **{DECODER: "model."}))
    write_directory(out / "new-rope", new_rope_config(config),
                    renamed(tensors, **{DECODER: "model.language_model.",
                                        "vision_tower.": "model.vision_tower.",
                                        "multi_modal_projector.": "model.multi_modal_projector."}))
    write_directory(out / "f32", config, {name: ("F32", shape, bf16_to_f32(data))
                                          for name, (_, shape, data) in tensors.items()})
    other = json.loads(json.dumps(config))
    other["text_config"]["query_pre_attn_scalar"] = 64
    write_directory(out / "qscale64", other, tensors)
    write_packed(out / "packed3.safetensors", config, tensors, TINY, "U8")
    for name, with_scale in (("tiny.gguf", True), ("tiny-keylength.gguf", False)):
        write_gguf(out / name, gguf_keys(config, with_scale), gguf_tensors(tensors))
    write_mixed(out, config, tensors)
    write_gemma4(out)


main()
