#!/usr/bin/env python3
"""Train by TRL what mt has trained, and compare each step's loss and the final weights.

    beside-trl.py lines KIND CHATS N >lines     N lines for mt-tokens and TRL, of conversations (a line each)
    beside-trl.py compare KIND MODEL LINES METRICS RESULT --batch B --lr X --steps N

KIND is sft, dpo, simpo, orpo or kto. MODEL is where both start from, METRICS what mt-step printed, RESULT what
mt exported. Exit 1 if losses differ by more than 1e-5 of themselves, the final weights by more than 5e-4 of their whole
update, or those of one tensor by more than 1e-2 of its own. (Adam divides by the gradient's size: of a weight whose
gradient is near zero, rounding decides which way it goes, and a norm of 576 weights may have one such.)

TRL computes what mt does with two exceptions. Its ORPO takes the first term of the loss over the prompt, too: here it
is taken over the answer. Its SimPO and ORPO put BOS before a text whether or not the tokenizer does: here they do not.
"""
import argparse
import json
import math
import os
import sys
import tempfile

LOSS, FINAL, TENSOR = 1e-5, 5e-4, 1e-2
LONGEST = 200       # characters of a question or an answer


def lines(kind, chats, n):
    turns = []
    for line in open(chats, encoding="utf-8"):
        question, answer = (m["content"] for m in json.loads(line)["messages"][:2])
        if max(len(question), len(answer)) <= LONGEST:
            turns.append((question, answer))
    for i, ((question, answer), (_, other)) in enumerate(zip(turns[:n], turns[1:n] + turns[:1])):
        if kind in ("simpo", "orpo"):           # these append EOS behind a template's end
            print(json.dumps({"prompt": question + "\n", "chosen": answer, "rejected": other}))
            continue
        prompt = [{"role": "user", "content": question}]
        answer, other = ([{"role": "assistant", "content": text}] for text in (answer, other))
        good = i % 3 != 1
        sides = {"sft": {"completion": answer}, "kto": {"completion": answer if good else other, "label": good}}.get(
            kind, {"chosen": answer, "rejected": other})
        print(json.dumps({"prompt": prompt, **sides}))


def trainer_of(kind):
    """(trainer, configuration, its options)"""
    if kind == "sft":
        from trl import SFTConfig, SFTTrainer
        return SFTTrainer, SFTConfig, {"completion_only_loss": True}
    if kind == "dpo":
        from trl import DPOConfig, DPOTrainer
        return DPOTrainer, DPOConfig, {"beta": 0.1}
    if kind == "simpo":
        from trl.experimental.cpo import CPOConfig, CPOTrainer
        return CPOTrainer, CPOConfig, {"loss_type": "simpo", "cpo_alpha": 0.0, "beta": 2.0, "simpo_gamma": 1.0}
    if kind == "kto":
        from trl.experimental.kto import KTOConfig, KTOTrainer
        return KTOTrainer, KTOConfig, {"loss_type": "apo_zero_unpaired", "beta": 0.1}
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    class OfAnswers(ORPOTrainer):
        def concatenated_forward(self, model, batch):
            chosen, *others, _ = super().concatenated_forward(model, batch)
            targets = (batch["chosen_labels"][:, 1:] != -100).sum(1)
            return chosen, *others, -(chosen * targets).sum() / targets.sum()
    return OfAnswers, ORPOConfig, {"beta": 0.1}


def train(o):
    """(the first weights, each step's loss, the trained model)"""
    import datasets
    import torch
    import transformers
    trainer, config, options = trainer_of(o.kind)
    losses = []

    class InOrder(trainer):
        def _get_train_sampler(self, *args):
            return torch.utils.data.SequentialSampler(self.train_dataset)

        def training_step(self, *args, **kwargs):
            losses.append(super().training_step(*args, **kwargs))
            return losses[-1]

    model = transformers.AutoModelForCausalLM.from_pretrained(o.model, dtype=torch.float32)
    first = {name: p.detach().clone() for name, p in model.named_parameters()}
    tokenizer = transformers.AutoTokenizer.from_pretrained(o.model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    if o.kind in ("simpo", "orpo"):
        tokenizer.bos_token = None
    with open(o.lines) as f:
        data = datasets.Dataset.from_list([json.loads(line) for line in f])
    with tempfile.TemporaryDirectory() as out:
        made = InOrder(model, args=config(
            output_dir=out, per_device_train_batch_size=o.batch, max_steps=o.steps, learning_rate=o.lr, bf16=False,
            lr_scheduler_type="linear", warmup_steps=0, weight_decay=0.0, max_grad_norm=1.0, optim="adamw_torch",
            gradient_checkpointing=False, use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True,
            max_length=1024, **options), train_dataset=data, processing_class=tokenizer)
        made.remove_callback(transformers.PrinterCallback)
        made.train()
    return first, [loss.item() for loss in losses], model


def compare(o):
    import torch
    import transformers
    first, losses, model = train(o)
    with open(o.metrics) as f:
        theirs = [json.loads(line)["loss"] for line in f]
    worst = max(abs(mt / trl - 1) for mt, trl in zip(theirs, losses, strict=True))
    result = dict(transformers.AutoModelForCausalLM.from_pretrained(o.result, dtype=torch.float32).named_parameters())
    off = {name: (result[name] - p).double().norm().item() for name, p in model.named_parameters()}
    update = {name: (p - first[name]).double().norm().item() for name, p in model.named_parameters()}
    final = math.hypot(*off.values()) / math.hypot(*update.values())
    tensor, name = max((off[name] / update[name], name) for name in off)
    print("TRL, %s: %d steps, loss %.4f to %.4f; worst: loss %.2g, final weights %.2g; of a tensor %.2g (%s)"
          % (o.kind, o.steps, theirs[0], theirs[-1], worst, final, tensor, name))
    sys.exit(worst > LOSS or final > FINAL or tensor > TENSOR)


def main():
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    p = argparse.ArgumentParser()
    commands = p.add_subparsers(dest="command", required=True)
    kinds = {"choices": ("sft", "dpo", "simpo", "orpo", "kto")}
    of_lines, of_training = commands.add_parser("lines"), commands.add_parser("compare")
    of_lines.add_argument("kind", **kinds)
    of_lines.add_argument("chats")
    of_lines.add_argument("n", type=int)
    of_training.add_argument("kind", **kinds)
    for name in ("model", "lines", "metrics", "result"):
        of_training.add_argument(name)
    for name, type in ("batch", int), ("lr", float), ("steps", int):
        of_training.add_argument("--" + name, type=type, required=True)
    o = p.parse_args()
    lines(o.kind, o.chats, o.n) if o.command == "lines" else compare(o)


main()
