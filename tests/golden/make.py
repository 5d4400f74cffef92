#!/usr/bin/env python3
"""Make the golden data of this folder with PyTorch and transformers (see README.md).

    python3 make.py [--check] [NAME...]

For each case: a small random model as transformers saves it, the records it is trained on, and what 20 steps of
PyTorch's AdamW in fp32 make of it; of some cases, also those of other optimizers. The same steps are run again in
fp64, and the distance between the two is printed and kept: it shows that the bounds of compare.py can be reached by
fp32 arithmetic, with room to spare.
--check only prints that table and writes nothing. A case that proves too little is named.
"""

import argparse
import contextlib
import copy
import fnmatch
import functools
import json
import math
import os
import random
import shutil
import statistics
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import optimization
from transformers.core_model_loading import revert_weight_conversion

import cases_experts
import cases_mixers
import cases_more
import cases_wrappers
from cases import FULL, SLIDING, FAMILIES
from compare import exact, sized_by
from logits import plainly
import mtp
import preferences
from records import CONTEXT_ONLY, Weighted, ids, pack, read_records, target_weights, targets, write_records
from released import RENAMED, released

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = 20
FP32 = torch.float32  # also inside fp64() below

# mt-step's options if a case has no others. eps: Adam's step is about lr * g / (|g| + eps). With eps 1e-8 an element
# whose gradient is no larger than its rounding error moves by lr in a random direction, and two correct programs
# differ. k_proj.bias is full of such elements (a shift of all keys that rope turns slowly hardly changes softmax). Here
# gradients have a median of 1e-2 and errors of 3e-8: with an eps of 1e-4 such an error moves a weight by at most 3e-4
# of lr, and eps hardly changes the median element. Two cases keep 1e-5.
DEFAULTS = {"batch": 4, "micro": 4, "seq": 24, "lr": 2e-3, "warmup": 0, "schedule": "linear", "decay": 0, "min_lr": 0.0,
            "wd": 0.0, "beta1": 0.9, "beta2": 0.999, "eps": 1e-4, "clip": 1.0, "pack": "docs"}

# dialect: that of config.json. also: keys without effect in files of this dialect. shard: save_pretrained's
# max_shard_size. names: keys with other names in files of dialect 4. extra: rows of data after the last step's. bf16:
# keep tensors of the bf16 run as well. eval: evaluate before the first step and every 10. optims: other optimizers that
# train it in fp32, with the options that differ. parts: only some tensors are trained, as mt-store create's options
# say. double: the results are fp64's, where transformers computes with less care than fp32 allows. weights: each token
# has one, -1 to 2. loss (of train): an objective, see preferences.py.
CASES = {
    # as Llama 2: every head has its own keys, untied embeddings, plain rope; 40 columns of heads for 32 hidden
    "llama2": {
        "config": transformers.LlamaConfig(
            vocab_size=97, hidden_size=32, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4,
            head_dim=10,
            rms_norm_eps=1e-5, max_position_embeddings=64),
        "dialect": 4,
        "train": {"clip": 4.0, "eps": 1e-5}},
    # as Llama 3: short original context, so that 24 positions use all three zones of the scaling
    "llama3": {
        "config": transformers.LlamaConfig(
            vocab_size=101, hidden_size=32, intermediate_size=52, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=12, rms_norm_eps=1e-5, max_position_embeddings=256,
            rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                             "high_freq_factor": 4.0, "original_max_position_embeddings": 32}),
        "dialect": 5, "bf16": True, "eval": True, "extra": 3,
        "train": {"micro": 2, "seq": 32, "warmup": 3, "schedule": "cosine", "wd": 0.1, "clip": 3.0},
        "optims": {"lion": {"lr": 2e-4, "wd": 10.0, "beta2": 0.99}, "sgd": {"lr": 0.02, "wd": 0.5}},
        "parts": {"block": {"train": "model.layers.1.*,lm_head.weight"},
                  "norms": {"train": "*norm*,model.embed_tokens.weight", "freeze": "model.norm.weight"}}},
    "llama3-v4": {
        "config": transformers.LlamaConfig(
            vocab_size=99, hidden_size=32, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=1, rms_norm_eps=1e-5, max_position_embeddings=256, tie_word_embeddings=True,
            rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
                             "high_freq_factor": 4.0, "original_max_position_embeddings": 64}),
        "dialect": 4, "shard": "24KB",
        "train": {"batch": 6, "micro": 2, "seq": 20, "warmup": 4, "schedule": "constant", "clip": 0.0}},
    # as llama2, smaller, on records with weights
    "llama-weights": {
        "config": transformers.LlamaConfig(
            vocab_size=89, hidden_size=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=3,
            num_key_value_heads=1, max_position_embeddings=64),
        "dialect": 5, "weights": True,
        "train": {"micro": 2, "seq": 27, "warmup": 2, "clip": 3.3}},
    # objectives, in fp64. The reference of dpo and kto is another model, as kd's teacher; a quarter of pg's targets is
    # clipped
    **{"llama-" + loss: {
        "config": transformers.LlamaConfig(
            vocab_size=79, hidden_size=24, intermediate_size=28, num_hidden_layers=2, num_attention_heads=3,
            num_key_value_heads=1, max_position_embeddings=64, tie_word_embeddings=loss == "orpo"),
        "dialect": 5, "double": True,
        "train": {"steps": 8, "micro": 2, "seq": 40, "warmup": 2, "loss": loss.split("-")[0], **options}}
       for loss, options in (("dpo", {"beta": 0.1, "clip": 2.5}), ("simpo", {"beta": 1.0, "gamma": 0.6, "clip": 4.0}),
                             ("orpo", {"beta": 0.4, "clip": 5.0}),
                             ("pg", {"clip_low": 0.2, "clip_high": 0.28, "clip": 3.0}),
                             ("kto", {"beta": 0.1, "undesirable": 0.75, "clip": 0.4}),
                             # the teacher's 8 most likely tokens, and the others as a class; without these; all tokens
                             ("kd", {"top": 8, "hard": 0.25, "clip": 1.04}),
                             ("kd-hot", {"top": 8, "temperature": 2.0, "rest": 0.0, "clip": 4.0, "steps": 4}),
                             ("kd-all", {"top": 79, "clip": 2.08, "steps": 4, "batch": 2}))},
    # every bias of a llama; pad_token_id is a token of the data, embeddings untied
    "llama-bias": {
        "config": transformers.LlamaConfig(
            vocab_size=103, hidden_size=32, intermediate_size=52, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, attention_bias=True, mlp_bias=True, pad_token_id=7, max_position_embeddings=64),
        "dialect": 5, "extra": 2,
        "train": {"micro": 1, "batch": 3, "seq": 29, "warmup": 2, "schedule": "cosine", "min_lr": 2e-4, "clip": 3.5}},
    # older files use the key 'type' for rope_type
    "llama-linear": {
        "config": transformers.LlamaConfig(
            vocab_size=113, hidden_size=32, intermediate_size=50, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=128,
            rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
        "dialect": 4, "rope_type_key": "type",
        "train": {"micro": 2, "warmup": 5, "wd": 0.05, "clip": 3.5}},
    # tied, biases on q, k and v; pad_token_id's row gets only the head gradient; use_sliding_window disables the
    # window, as in Qwen's files
    "qwen2": {
        "config": transformers.Qwen2Config(
            vocab_size=151, hidden_size=36, intermediate_size=52, num_hidden_layers=2, num_attention_heads=6,
            num_key_value_heads=2, tie_word_embeddings=True, pad_token_id=11, max_position_embeddings=128),
        "dialect": 4, "also": {"sliding_window": 16}, "extra": 4,
        "train": {"micro": 2, "seq": 26, "wd": 0.1, "schedule": "cosine", "clip": 4.5}},
    # windows of 7 from layer 1 on
    "qwen2-window": {
        "config": transformers.Qwen2Config(
            vocab_size=109, hidden_size=32, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, use_sliding_window=True, sliding_window=7, max_window_layers=1,
            max_position_embeddings=128, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
        "dialect": 5,
        "train": {"micro": 2, "seq": 32, "warmup": 3, "schedule": "wsd", "decay": 6, "min_lr": 4e-4, "clip": 3.5}},
    # norms on q and k, head_dim far from hidden / heads, tied
    "qwen3": {
        "config": transformers.Qwen3Config(
            vocab_size=127, hidden_size=32, intermediate_size=52, num_hidden_layers=2, num_attention_heads=3,
            num_key_value_heads=1, head_dim=20, tie_word_embeddings=True, max_position_embeddings=128),
        "dialect": 5, "bf16": True, "eval": True, "shard": "40KB",
        "parts": {"blocks": {"freeze": "model.embed_tokens.weight,model.layers.0.*"}},
        "train": {"batch": 6, "micro": 3, "schedule": "wsd", "warmup": 2, "decay": 8, "clip": 3.8, "eps": 1e-5}},
    "qwen3-v4": {
        "config": transformers.Qwen3Config(
            vocab_size=98, hidden_size=30, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=10, attention_bias=True, use_sliding_window=True, sliding_window=5,
            max_window_layers=1, max_position_embeddings=128),
        "dialect": 4,
        "train": {"warmup": 2, "clip": 2.5}},
    # all layers have a window of 6 tokens, including their own
    "mistral": {
        "config": transformers.MistralConfig(
            vocab_size=107, hidden_size=32, intermediate_size=52, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=10, sliding_window=6, max_position_embeddings=128),
        "dialect": 5,
        "train": {"micro": 2, "seq": 28, "warmup": 2, "schedule": "constant", "wd": 0.1, "clip": 3.2}},
    "mistral-v4": {
        "config": transformers.MistralConfig(
            vocab_size=105, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=4, sliding_window=None, max_position_embeddings=128),
        "dialect": 4,
        "train": {"schedule": "cosine", "warmup": 1, "clip": 3.4}},
    **FAMILIES,
    **cases_more.CASES,
    **cases_experts.CASES,
    **cases_wrappers.KEPT,
    **cases_mixers.CASES,
}


class Unfit(Exception):
    """A case that proves too little, or that is not the model that it should be"""


# Models

# Llama4ForConditionalGeneration of 5.24 reads this of the text model's results, which lack it, and fails.
transformers.modeling_outputs.MoeCausalLMOutputWithPast.image_outputs = None


def is_wrapper(config):
    return hasattr(config, "text_config") or hasattr(config, "vision_config")


def is_carried(config, name):
    """Not trained: of a class for images too, a tensor of other parts than its text model; of others, an indexer's"""
    if not is_wrapper(config):
        return ".indexer." in name
    return not any(part in name for part in ("language_model.", "text_model.", "lm_head.")) and not name.startswith(
        ("model.embed_tokens.", "model.layers.", "model.norm."))


def build(config, dtype):
    whole = is_wrapper(config)
    kind = transformers.AutoModelForMultimodalLM if whole else transformers.AutoModelForCausalLM
    # a copy, since a class for images notes its dtype in it
    model = kind.from_config(copy.deepcopy(config), dtype=dtype, **plainly(config))
    if not whole and mtp.weight(config):
        model.mtp = mtp.Mtp(model).to(dtype)
    for name, p in model.named_parameters():
        p.requires_grad_(not is_carried(config, name))
    return with_text_scale(model) if whole else model


def with_text_scale(model):
    """Cohere and Granite have a factor of their logits, which most of transformers' classes for images leave out."""
    text = model.config.get_text_config()
    if model.config.model_type in ("granite4_vision", "granite_docling"):
        return model
    scale = getattr(text, "logit_scale", 1) / getattr(text, "logits_scaling", 1)
    head = model.get_output_embeddings() or model.language_model.get_output_embeddings()
    head.register_forward_hook(lambda _, __, logits: logits * scale)
    return model


def random_weights(config, seed, one=False, factors=(), correction=(1, 0.1), uniform=()):
    """A model in which every tensor has an effect: no bias is 0, no norm is 1, attention is not uniform. one: norms
    multiply by 1 + weight, although transformers starts with weights of 1 (others are known by their zeros).
    factors: of tensors, by a part of their names; uniform: bounds of others. correction: mean and deviation of
    constants."""
    model = build(config, torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in trained(model).items():
            noise = torch.randn(p.shape, generator=generator)
            if p.dim() >= 2:
                p.copy_(noise * (0.3 if "embed" in name else 1.2 / math.sqrt(p.shape[-1])))
            elif name.endswith("bias"):
                p.copy_(noise * 0.1)
            else:
                p.copy_((1 if p.any() and not one else 0) + noise * 0.2)
            for part in uniform:
                if part in name:
                    low, high = uniform[part]
                    p.copy_(low + (high - low) * torch.rand(p.shape, generator=generator))
            for part in factors:
                if part in name:
                    p.mul_(factors[part])
        for name, b in constants(model).items():
            if "act_fn" not in name:  # xIELU's are as they are in all files
                b.copy_(correction[0] + torch.randn(b.shape, generator=generator) * correction[1])
    return model


def trained(model):
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def constants(model):
    """Tensors of the model's files that are not trained, but for those that are carried."""
    return {name: t for name, t in untrained(model).items() if not is_carried(model.config, name)}


def carried(model):
    return {name: t for name, t in untrained(model).items() if is_carried(model.config, name)}


def untrained(model):
    files = model.state_dict()
    return {name: t for name, t in (*model.named_buffers(), *model.named_parameters())
            if name in files and not t.requires_grad}


def as_files(model, tensors):
    """A model's tensors under the names and in the shapes of its files: transformers packs all experts of a layer."""
    files = revert_weight_conversion(model, dict(tensors))
    return released(model.config, {name: t.contiguous() for name, t in files.items()})


def as_transformers_4(config, case):
    """config.json's content in the dialect of transformers 4: the same model, other keys. Gemma 4, which is younger,
    has its keys as on the hub instead of per_layer_config."""
    old = dict(config)
    if "per_layer_config" in old:
        full, = {tuple(sorted(layer.items())) for layer in old.pop("per_layer_config").values()}
        return {**old, "global_head_dim": dict(full)["head_dim"],
                "num_global_key_value_heads": dict(full)["num_key_value_heads"]}
    if "layers_block_type" in old:
        letters = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}
        old["hybrid_override_pattern"] = "".join(letters[layer] for layer in old.pop("layers_block_type"))
        return {**old, "torch_dtype": old.pop("dtype")}
    if old["model_type"] == "kimi_linear":
        types, mlps = old.pop("layer_types"), old.pop("mlp_layer_types")
        names = {"head_dim": "linear_head_dim", "num_heads": "linear_num_heads",
                 "short_conv_kernel_size": "linear_conv_kernel_dim"}
        linear = {name: old.pop(key) for name, key in names.items()}
        for name, kind in ("full_attn_layers", FULL), ("kda_layers", "linear_attention"):
            linear[name] = [i + 1 for i, of in enumerate(types) if of == kind]
        return {**old, "linear_attn_config": linear, "first_k_dense_replace": mlps.count("dense"),
                "torch_dtype": old.pop("dtype")}
    rope = dict(old.pop("rope_parameters"))
    if "layer_types" not in case.get("keep", []):
        old.pop("layer_types", None)
    old["torch_dtype"] = old.pop("dtype")
    if FULL in rope:
        local, rope = rope[SLIDING]["rope_theta"], dict(rope[FULL])
        if old["model_type"] == "gemma3_text":
            old["rope_local_base_freq"] = local
        else:
            old["layer_types"] = config["layer_types"]
    neox = old["model_type"] == "gpt_neox"
    old["rotary_emb_base" if neox else "rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        old["rotary_pct" if neox else "partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    if old["model_type"] == "phi3" and "original_max_position_embeddings" in rope:
        old["original_max_position_embeddings"] = rope.pop("original_max_position_embeddings")
    rope_type = rope.pop("rope_type")
    key = case.get("rope_type_key", "rope_type")
    old["rope_scaling"] = None if rope_type == "default" else {key: rope_type, **rope}
    old["transformers_version"] = "4.57.6"
    for name, key in case.get("names", {}).items():
        old[name] = old.pop(key)
    old.update(case.get("also", {}))
    return old


def write_config(file, config):
    with open(file, "w") as f:
        json.dump(config, f, indent=2, sort_keys=True)
        f.write("\n")


def save_model(model, case, path):
    """The folder "model"; with case["both"] config.json in the other dialect beside it, as config.other.json."""
    model.save_pretrained(os.path.join(path, "model"), max_shard_size=case.get("shard", "1GB"))
    file = os.path.join(path, "model", "model.safetensors")
    if model.config.model_type in RENAMED or model.config.model_type == "olmo_hybrid" or mtp.weight(model.config):
        save_file(released(model.config, load_file(file)), file, {"format": "pt"})
    file = os.path.join(path, "model", "config.json")
    with open(file) as f:
        new = json.load(f)
    if case.get("own_head"):
        del new["tie_word_embeddings"]
        write_config(file, new)
    old = as_transformers_4(new, case) if case["dialect"] == 4 or case.get("both") else None
    if case["dialect"] == 4:
        write_config(file, old)
    if case.get("both"):
        write_config(os.path.join(path, "config.other.json"), new if case["dialect"] == 4 else old)
    if old:
        check_dialect(model, old)


def check_dialect(model, old):
    with tempfile.TemporaryDirectory() as folder:
        write_config(os.path.join(folder, "config.json"), old)
        read, meant = transformers.AutoConfig.from_pretrained(folder).to_dict(), model.config.to_dict()
    read.get("rope_parameters", {}).pop("type", None)  # transformers keeps it beside rope_type
    ignored = ("_name_or_path", "transformers_version", "sliding_window_pattern")
    differ = [key for key in meant if key not in ignored and read.get(key) != meant[key]]
    if differ:
        raise Unfit("%s: in the other dialect these read differently: %s" % (
            model.config.model_type, ", ".join("%s %s for %s" % (k, read.get(k), meant[k]) for k in differ)))


# Data

def document(rng, vocab, length):
    """A noisy walk through the vocabulary, which a model can learn; some documents have a prompt."""
    token = rng.randrange(vocab)
    tokens = []
    for _ in range(length):
        tokens.append(token)
        token = (5 * token + 3) % vocab if rng.random() < 0.7 else rng.randrange(vocab)
    if rng.random() < 0.4:
        for i in range(length // 3):
            tokens[i] |= CONTEXT_ONLY
    return tokens


def documents(rng, vocab, seq, rows):
    """Documents for at least that many rows, with every length that packing handles differently."""
    special = [seq, seq + 1, 2 * seq - 1, 2 * seq, seq - 1, 2]
    made = []
    while len(pack(made, seq, "docs")) < rows:
        length = special[len(made) // 6 % 6] if len(made) % 6 == 3 else rng.randint(2, seq * 2 // 3)
        made.append(document(rng, vocab, length))
    return made


def preference_data(config, weights, rng, o):
    """For an objective. dpo's reference and kd's teacher are the model with noise; pg's policy was the model, but for
    noise."""
    start = {n: w + 0.5 * w.std() * torch.randn_like(w) if w.dim() > 1 else w for n, w in weights.items()} \
        if o["loss"] in ("dpo", "kto", "kd") else weights
    with fp64():
        other = build(config, torch.float64)
        other.load_state_dict({n: w.double() for n, w in start.items()}, strict=False)
        draw = {"pg": preferences.samples, "kto": preferences.labelled,
                "kd": functools.partial(preferences.taught, o.get("top"))}.get(o["loss"], preferences.pairs)
        return draw(rng, document, config.vocab_size, o["seq"], o["steps"] * o["batch"],
                    other if o["loss"] in ("pg", "dpo", "kto", "kd") else None)


# Training

@contextlib.contextmanager
def fp64():
    """transformers computes norms, softmax and rope in fp32; within this block fp64 replaces fp32."""
    names = {"float32": torch.float32, "float": torch.float}
    to_float = torch.Tensor.float
    for name in names:
        setattr(torch, name, torch.float64)
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        for name, dtype in names.items():
            setattr(torch, name, dtype)
        torch.Tensor.float = to_float
        torch.set_default_dtype(torch.float32)


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of Symbolic Discovery of Optimization Algorithms (Chen et al. 2023, arXiv 2302.06675)."""

    def __init__(self, params, lr, betas):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (beta1, beta2), lr = group["betas"], group["lr"]
            for p in (p for p in group["params"] if p.grad is not None):
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                c = beta1 * m + (1 - beta1) * p.grad
                p.sub_(lr * (c.sign() + group["weight_decay"] * p))
                m.copy_(beta2 * m + (1 - beta2) * p.grad)


def optimizer(rule, groups, o):
    if rule == "lion":
        return Lion(groups, o["lr"], (o["beta1"], o["beta2"]))
    if rule == "sgd":
        return torch.optim.SGD(groups, lr=o["lr"], momentum=o["beta1"], foreach=False, fused=False)
    return torch.optim.AdamW(groups, lr=o["lr"], betas=(o["beta1"], o["beta2"]), eps=o["eps"], foreach=False,
                             fused=False)


def scheduler(optimizer, o):
    """The function of transformers that --schedule names."""
    if o["schedule"] == "linear":
        return optimization.get_linear_schedule_with_warmup(optimizer, o["warmup"], o["steps"])
    if o["schedule"] == "constant":
        return optimization.get_constant_schedule_with_warmup(optimizer, o["warmup"])
    if o["schedule"] == "cosine" and o["min_lr"] == 0:
        return optimization.get_cosine_schedule_with_warmup(optimizer, o["warmup"], o["steps"])
    if o["schedule"] == "cosine":
        return optimization.get_cosine_with_min_lr_schedule_with_warmup(
            optimizer, o["warmup"], o["steps"], min_lr=o["min_lr"])
    return optimization.get_wsd_schedule(
        optimizer, o["warmup"], o["decay"], num_training_steps=o["steps"], min_lr_ratio=o["min_lr"] / o["lr"])


def loss_sum(model, row):
    """Cross-entropy summed over a row's targets. Each document runs alone, so it cannot see others."""
    total, count = 0, 0
    for piece in row:
        want = [-100 if t is None else t for t in targets(piece)]
        if all(t == -100 for t in want):
            continue
        logits = model(input_ids=torch.tensor([ids(piece)]), use_cache=False).logits[0]
        if getattr(piece, "weights", None):
            each = torch.nn.functional.cross_entropy(logits, torch.tensor(want), ignore_index=-100, reduction="none")
            loss = (each * torch.tensor(target_weights(piece), dtype=each.dtype)).sum()
        else:
            loss = torch.nn.functional.cross_entropy(logits, torch.tensor(want), ignore_index=-100, reduction="sum")
        total = total + loss
        count += sum(t != -100 for t in want)
    return total, count


def micro_loss(model, rows):
    """A micro-batch of a model whose loss has terms of its routers: the sum of cross-entropies, the number of targets,
    the auxiliary loss and the z-loss, both without coefficient. Of all documents, also of those without targets."""
    total, count, logits = 0, 0, []
    for piece in (piece for row in rows for piece in row):
        out = model(input_ids=torch.tensor([ids(piece)]), use_cache=False, output_router_logits=True)
        want = [-100 if t is None else t for t in targets(piece)]
        total = total + torch.nn.functional.cross_entropy(out.logits[0], torch.tensor(want), ignore_index=-100,
                                                          reduction="sum")
        count += sum(t != -100 for t in want)
        logits.append(out.router_logits)
    layers = tuple(torch.cat(of_layer) for of_layer in zip(*logits))
    aux = 0
    if aux_coef(model.config):
        balancing = getattr(sys.modules[type(model).__module__], "load_balancing_loss_func")
        of = model if hasattr(model, "num_experts") else model.config.get_text_config()
        aux = balancing(layers, of.num_experts, of.num_experts_per_tok)
    # ST-MoE, arXiv 2202.08906, equation 5
    z = torch.logsumexp(torch.cat(layers), dim=-1).square().mean()
    return total, count, aux, z


def aux_coef(config):
    config = config.get_text_config()
    if config.model_type == "glm4_moe":  # returns the logits, and adds nothing to its loss
        return 0
    return config.router_aux_loss_coef if getattr(config, "output_router_logits", False) else 0


def z_coef(config):
    return getattr(config.get_text_config(), "router_z_loss_coef", 0)


def check_loss(model, rows):
    """Of one document, the loss is what the model itself computes."""
    piece = max((piece for row in rows for piece in row), key=len)
    with torch.no_grad():
        total, count, aux, _ = micro_loss(model, [[piece]])
    tokens = torch.tensor([ids(piece)])
    labels = torch.tensor([[-100] + [-100 if t is None else t for t in targets(piece)][:-1]])
    with torch.no_grad():
        loss = model(input_ids=tokens, labels=labels, use_cache=False).loss
    ours = total / count + aux_coef(model.config) * aux
    if abs(float(loss - ours)) > 1e-6 * abs(float(ours)):
        raise Unfit("the model's loss is %r, not %r" % (float(loss), float(ours)))


def to_bf16(p):
    """The w half of mt's hi/lo pair, as a number: the fp32 bits rounded to the nearest bf16, ties upward."""
    bits = p.to(FP32).view(torch.int32)
    return ((bits + 0x8000) & -0x10000).view(FP32)


def evaluate(model, rows):
    with torch.no_grad():
        sums = [loss_sum(model, row) for row in rows]
    return float(sum(s for s, _ in sums)) / sum(n for _, n in sums)


def freeze(params, part):
    """By name, as --train and --freeze of mt-store create"""
    def has(option, name):
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in part[option].split(","))

    for name, p in params.items():
        p.requires_grad_(("train" not in part or has("train", name)) and not ("freeze" in part and has("freeze", name)))


def train(config, weights, rows, o, double, bf16, eval_rows, rule="adamw", part={}):
    """The golden run: metrics of each step, gradients of the first, weights after the last.

    With bf16, forward and backward see the rounded weights (but for those that stay exact) and the optimizer updates
    the exact ones, as mt does."""
    real = torch.float64 if double else torch.float32
    with fp64() if double else contextlib.nullcontext():
        model = build(config, real)
        model.load_state_dict({name: w.to(real) for name, w in weights.items()}, strict=False)
        model.train()
        params, fixed = trained(model), constants(model)
        freeze(params, part)
        # Tensors of two dimensions and more decay, embeddings too.
        groups = [{"params": [p for p in params.values() if (p.dim() >= 2) == decays], "weight_decay": o["wd"] * decays}
                  for decays in (True, False)]
        optim = optimizer(rule, groups, o)
        schedule = scheduler(optim, o)
        master = {}

        def round_weights():
            for name, p in {**params, **fixed}.items():
                master[name] = p.detach().clone()
                if not exact(config.get_text_config().model_type, name):
                    p.data.copy_(to_bf16(p.data))

        def restore_weights():
            for name, p in {**params, **fixed}.items():
                p.data.copy_(master[name])

        def evaluation():
            if bf16:
                round_weights()
            loss = evaluate(model, eval_rows)
            if bf16:
                restore_weights()
            return loss

        steps, first, evals = [], None, {}
        if aux_coef(config):
            check_loss(model, rows[:1])
        if eval_rows:
            evals["0"] = evaluation()
        for n in range(1, o["steps"] + 1):
            batch = rows[(n - 1) * o["batch"] : n * o["batch"]]
            if bf16:
                round_weights()
            count = sum(t is not None for row in batch for piece in row for t in targets(piece))
            optim.zero_grad()
            loss = 0.0
            entry, terms = {}, aux_coef(config) or z_coef(config)
            if "loss" in o:
                loss, entry = preferences.step(model, batch, o)
                loss *= count
            for first_row in range(0, len(batch) if terms else 0, o["micro"]):
                total, found, aux, z = micro_loss(model, batch[first_row : first_row + o["micro"]])
                share = found / count
                ((total / count) + share * (aux_coef(config) * aux + z_coef(config) * z)).backward()
                loss += float(total.detach())
                for key, coef, value in (("aux_loss", aux_coef(config), aux), ("z_loss", z_coef(config), z)):
                    if coef:
                        entry[key] = entry.get(key, 0.0) + share * float(value.detach())
            # micro-batches only change the order of this sum
            ahead = mtp.weight(config)
            for row in batch if ahead else []:
                total, second, found = mtp.loss_sums(model, row)
                ((total + ahead * second) / count).backward()
                loss += float(total.detach())
                entry["mtp_loss"] = entry.get("mtp_loss", 0.0) + float(torch.as_tensor(second).detach()) / count
            for row in batch if not terms and not ahead and "loss" not in o else []:
                total, found = loss_sum(model, row)
                if found:
                    (total / count).backward()
                    loss += float(total.detach())
            if first is None:
                first = {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in params.items()}
                first.update({name: torch.zeros_like(b) for name, b in fixed.items()})
            if bf16:
                restore_weights()
            norm = torch.nn.utils.clip_grad_norm_(params.values(), o["clip"] or math.inf)
            lr = optim.param_groups[0]["lr"]
            optim.step()
            schedule.step()
            steps.append({"step": n, "loss": loss / count, "grad_norm": float(norm), "lr": lr, "tokens": count,
                          **entry})
            if eval_rows and n % 10 == 0:
                evals[str(n)] = evaluation()
        return {"steps": steps, "eval": evals, "grad1": first,
                "final": {name: p.detach().clone() for name, p in {**params, **fixed}.items()}}


def distance(a, b, weights):
    """The difference of two runs in compare.py's four measures."""
    def tensors(key, scale):
        return max(float((a[key][n].double() - b[key][n].double()).norm() / scale(sized_by(n)))
                   for n in a[key] if scale(sized_by(n)))

    def metric(key):
        return max(abs(x[key] - y[key]) / abs(y[key]) for x, y in zip(a["steps"], b["steps"]))

    return {"loss": metric("loss"), "grad_norm": metric("grad_norm"),
            "grad1": tensors("grad1", lambda n: b["grad1"][n].double().norm()),
            "final": tensors("final", lambda n: (b["final"][n].double() - weights[n].double()).norm())}


# Files

def write_json(path, value):
    """A list with one item a line, or an object with one member a line and its lists likewise."""
    def lines(items):
        return "[\n" + ",\n".join(" " + json.dumps(item) for item in items) + "\n]"

    with open(path, "w") as f:
        if isinstance(value, list):
            f.write(lines(value) + "\n")
        else:
            f.write("{\n" + ",\n".join(
                '"%s": %s' % (key, lines(v) if isinstance(v, list) else json.dumps(v))
                for key, v in value.items()) + "\n}\n")


def arguments(o):
    """The case's options for mt-step, without those that equal the default, and the teacher's tokens."""
    return " ".join("--%s %s" % (key.replace("_", "-"), value) for key, value in o.items()
                    if key != "top" and (value or key not in ("warmup", "decay", "min_lr", "wd")))


def make_case(name, case, where, once=False):
    """In the folder `where`; None: only to see the distance. once: in fp64 only, and no distance."""
    seed = sum(name.encode()) + 1000
    o = {"steps": STEPS, **DEFAULTS, **case["train"]}
    config = case["config"]
    rng = random.Random(seed)
    torch.manual_seed(seed)
    model = random_weights(config, seed, case.get("one", False), case.get("factors", {}),
                           case.get("correction", (1, 0.1)), case.get("uniform", {}))
    weights = {n: p.detach().clone() for n, p in (*trained(model).items(), *constants(model).items())}

    text, whole = config.get_text_config(), is_wrapper(config)
    if "loss" in o:
        data = preference_data(config, weights, rng, o)
    else:
        data = documents(rng, text.vocab_size, o["seq"], o["steps"] * o["batch"] + case.get("extra", 0))
    if case.get("weights"):
        data = [Weighted(d, [rng.randint(-8, 16) / 8 for _ in d]) for d in data]
    rows = pack(data, o["seq"], o["pack"])
    if text.pad_token_id is not None and not any(text.pad_token_id in ids(d) for d in data):
        raise Unfit("%s: the data has no pad_token_id" % name)
    held_out = documents(rng, text.vocab_size, o["seq"], 9) if case.get("eval") else []
    eval_rows = pack(held_out, o["seq"], o["pack"])

    def both(bf16, rule="adamw", options=o, part={}):
        runs = [train(config, weights, rows, options, double, bf16, eval_rows, rule, part)
                for double in (False, True)[once:]]
        expected = runs[0]
        if case.get("double"):
            expected = {**runs[-1], **{k: {n: t.to(FP32) for n, t in runs[-1][k].items()} for k in ("grad1", "final")}}
        return expected, distance(runs[0], runs[-1], weights)

    run, reach = both(False)
    runs = {"": (run, reach, True)}
    if not whole:
        runs[".bf16"] = (*both(True), case.get("bf16", False))
    others = {rule: both(False, rule, {**o, **options}) for rule, options in case.get("optims", {}).items()}
    parts = case.get("parts", {})
    others.update({name: both(False, part=part) for name, part in parts.items()})
    clipped = sum(s["grad_norm"] > o["clip"] > 0 for s in run["steps"])
    for label, r in (*((name + kind.replace(".", " "), v[1]) for kind, v in runs.items()),
                     *((name + " " + k, v[1]) for k, v in others.items())):
        print("%-18s %8.1e %8.1e %8.1e %8.1e   " % (label, r["loss"], r["grad_norm"], r["grad1"], r["final"])
              + "loss %.3f to %.3f, norm %.2f to %.2f, %d clipped" % (
                  run["steps"][0]["loss"], run["steps"][-1]["loss"], min(s["grad_norm"] for s in run["steps"]),
                  max(s["grad_norm"] for s in run["steps"]), clipped), flush=True)
    fixed = constants(model)
    if min(float(run["grad1"][sized_by(n)].norm()) for n in run["grad1"] if n not in fixed) < 1e-4:
        raise Unfit("%s: a tensor without a gradient proves nothing" % name)
    if o["clip"] and not 0 < clipped < o["steps"]:
        raise Unfit("%s: some steps should be clipped and some not: clip %.3g would do" % (
            name, statistics.median(s["grad_norm"] for s in run["steps"])))
    if not where:
        return

    path = os.path.join(where, name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    save_model(model, case, path)
    write_records(os.path.join(path, "data.bin"), data)
    if read_records(os.path.join(path, "data.bin")) != data:
        raise Unfit("%s: records do not read as they were written" % name)
    if held_out:
        write_records(os.path.join(path, "eval.bin"), held_out)
    with open(os.path.join(path, "args"), "w") as f:
        f.write(arguments(o) + "\n")
    for suffix, (r, far, tensors) in runs.items():
        write_json(os.path.join(path, "expect%s.json" % suffix),
                   {"args": o, "fp32_against_fp64": far, "eval": r["eval"], "steps": r["steps"]})
        if tensors and not whole:
            save_file(as_files(model, r["grad1"]), os.path.join(path, "grad1%s.safetensors" % suffix))
        if tensors:
            final = {**{n: t.to(FP32) for n, t in r["final"].items()}, **carried(model)}
            save_file(as_files(model, final), os.path.join(path, "final%s.safetensors" % suffix))
    for rule, (r, far) in others.items():
        options = {**o, **case.get("optims", {}).get(rule, {})}
        write_json(os.path.join(path, "expect.%s.json" % rule),
                   {"args": options, "fp32_against_fp64": far, "eval": r["eval"], "steps": r["steps"]})
        save_file(as_files(model, r["final"]), os.path.join(path, "final.%s.safetensors" % rule))
        named = "create.%s" if rule in parts else "args.%s"
        with open(os.path.join(path, named % rule), "w") as f:
            f.write("".join("--%s=%s\n" % option for option in parts[rule].items()) if rule in parts
                    else arguments(options) + "\n")


def make_schedules():
    """Learning rates of transformers' schedules, step n being their step n - 1."""
    made = []
    for steps, warmup, decay, min_lr in ((10, 0, 4, 0.0), (10, 0, 4, 1e-4), (25, 5, 10, 0.0), (25, 5, 10, 2.5e-5),
                                         (12, 1, 11, 0.0), (7, 7, 0, 0.0), (40, 3, 1, 3e-4), (1, 0, 1, 0.0)):
        for kind in ("linear", "cosine", "wsd", "constant"):
            if min_lr and kind in ("linear", "constant") or kind == "wsd" and not decay:
                continue  # linear and constant have no minimum in transformers; wsd without a decay is constant
            o = {"schedule": kind, "steps": steps, "lr": 1e-3, "warmup": warmup, "decay": decay if kind == "wsd" else 0,
                 "min_lr": min_lr}
            adam = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=o["lr"])
            schedule, lrs = scheduler(adam, o), []
            for _ in range(steps):
                lrs.append(adam.param_groups[0]["lr"])
                adam.step()
                schedule.step()
            made.append({"args": arguments(o), **o, "lrs": lrs})
    write_json(os.path.join(HERE, "schedules.json"), made)


def make_packing():
    """Small documents and their rows. A row has tokens, a target or -1 for each, and the documents' starts."""
    m = CONTEXT_ONLY
    sets = {
        "three fit exactly": (8, [[1, 2, 3], [4, 5, 6], [7, 8], [9]]),
        "exactly a row": (6, [[1, 2], [10, 11, 12, 13, 14, 15], [3, 4]]),
        "one more than a row": (6, [[1, 2], [10, 11, 12, 13, 14, 15, 16], [3, 4, 5, 6], [7]]),
        "cut into full rows": (5, [[1], [20, 21, 22, 23, 24, 25, 26, 27, 28], [2, 3], [4, 5, 6]]),
        "cut, the rest shared": (5, [[30, 31, 32, 33, 34, 35, 36, 37, 38, 39], [1, 2], [3, 4, 5]]),
        "context only": (8, [[1 | m, 2 | m, 3, 4], [5, 6 | m, 7, 8 | m],
                             [9 | m, 10, 11 | m, 12 | m, 13, 14, 15, 16, 17 | m, 18]]),
        "single tokens": (4, [[1], [2], [3], [4], [5]]),
    }
    made = []
    for title, (seq, docs) in sets.items():
        entry = {"title": title, "seq": seq, "documents": docs}
        for how in ("docs", "concat", "none"):
            entry[how] = []
            for row in pack(docs, seq, how):
                starts = [sum(len(p) for p in row[:i]) for i in range(len(row))]
                entry[how].append({"tokens": [t for p in row for t in ids(p)],
                                   "targets": [-1 if t is None else t for p in row for t in targets(p)],
                                   "starts": starts})
        made.append(entry)
    write_json(os.path.join(HERE, "packing.json"), made)


def main():
    parser = argparse.ArgumentParser(description="make mt's golden data")
    parser.add_argument("--check", action="store_true", help="print the table, write nothing")
    parser.add_argument("name", nargs="*", metavar="NAME", help="cases to make (default: all)")
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    print("torch %s, transformers %s" % (torch.__version__, transformers.__version__))
    print("%-18s %8s %8s %8s %8s" % ("fp32 against fp64", "loss", "norm", "grad1", "final"))
    unknown = set(options.name) - set(CASES)
    if unknown:
        sys.exit("make.py: no such case: %s" % ", ".join(sorted(unknown)))
    unfit = []
    for name in options.name or CASES:
        try:
            make_case(name, CASES[name], None if options.check else HERE)
        except Unfit as e:
            unfit.append(str(e))
            print(e, flush=True)
    if not options.check:
        make_schedules()
        make_packing()
    if unfit:
        sys.exit("make.py: %d cases are unfit:\n%s" % (len(unfit), "\n".join(unfit)))


if __name__ == "__main__":
    main()
