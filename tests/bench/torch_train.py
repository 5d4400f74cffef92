#!/usr/bin/env python3
"""The training step that mt is compared with: transformers' model in PyTorch alone, DeepSpeed ZeRO-3 or FSDP2.

usage: torch_train.py MODEL RECORDS --batch B --seq T [--micro M] [--dtype fp32|bf16] [--threads N] [--compile]
                      [--by torch|zero3|fsdp2] [--device cpu|cuda] [--recompute]

MODEL is a Hugging Face directory; RECORDS are mt's (u32 count, then that many u32s), each of T tokens, B a step, M a
micro-batch. Prints a line of versions when ready, or what is missing. Then reads numbers of steps on stdin and answers
each with one line: the losses and the seconds of these steps.

fp32: everything in fp32. bf16: torch has fp32 weights, forward and backward under autocast; fsdp2 fp32 weights, of
which it makes bf16 ones where it computes; zero3 bf16 weights and fp32 masters. With zero3 and fsdp2, weights,
gradients and AdamW's state are in host memory, where the update runs. DeepSpeed compiles its CPU operators when they
are first used: that takes minutes, ninja and g++.
"""
import argparse
import os
import sys
import time

from peer import answer, leave

try:
    import torch
    import transformers
except ImportError as e:
    leave(e.name)


def options():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("records")
    p.add_argument("--batch", type=int, required=True)
    p.add_argument("--seq", type=int, required=True)
    p.add_argument("--micro", type=int)
    p.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    p.add_argument("--threads", type=int, default=torch.get_num_threads())
    p.add_argument("--lr", type=float, default=1e-4)
    p.add_argument("--compile", action="store_true")
    p.add_argument("--by", choices=TRAINERS, default="torch")
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--recompute", action="store_true", help="compute blocks' activations again in the backward pass")
    o = p.parse_args()
    o.micro = o.micro or o.batch
    return o


def batches(path, batch, seq):
    """(B, T) tokens of a step, in mt's order"""
    with open(path, "rb") as f:
        rows = torch.frombuffer(bytearray(f.read()), dtype=torch.int32).view(-1, seq + 1)[:, 1:].long()
    yield from rows.split(batch)


def load_model(o, dtype=torch.float32):
    config = transformers.AutoConfig.from_pretrained(o.model)
    experts = {"experts_implementation": "grouped_mm"} if hasattr(config, "num_experts") else {}
    model = transformers.AutoModelForCausalLM.from_pretrained(o.model, dtype=dtype, attn_implementation="sdpa",
                                                              **experts)
    model.config.use_cache = False
    if o.recompute:
        model.gradient_checkpointing_enable()
    return model.train()


def loss_of(model, rows):
    return model(input_ids=rows, labels=rows, use_cache=False).loss


class Torch:
    versions = {}

    def __init__(self, o):
        self.o, self.model = o, self.make_model(o)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=o.lr, weight_decay=0.0, fused=True)
        self.forward = torch.compile(self.model) if o.compile else self.model
        self.autocast = o.dtype == "bf16"

    def make_model(self, o):
        return load_model(o).to(o.device)

    def step(self, micros):
        losses = []
        for rows in micros:
            with torch.autocast(self.o.device, dtype=torch.bfloat16, enabled=self.autocast):
                losses.append(loss_of(self.forward, rows))
            (losses[-1] / len(micros)).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return losses


def join_group_of_one():
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", rank=0,
                                         world_size=1, store=torch.distributed.HashStore())


class Fsdp2(Torch):
    def __init__(self, o):
        super().__init__(o)
        self.autocast = False   # its policy has the dtypes

    def make_model(self, o):
        from torch.distributed import fsdp
        join_group_of_one()
        model = load_model(o)
        mesh = torch.distributed.device_mesh.init_device_mesh(o.device, (1,))
        compute = torch.bfloat16 if o.dtype == "bf16" else torch.float32
        how = {"mesh": mesh, "mp_policy": fsdp.MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)}
        if o.device != "cpu":
            how["offload_policy"] = fsdp.CPUOffloadPolicy()
        for block in model.model.layers:
            fsdp.fully_shard(block, **how)
        return fsdp.fully_shard(model, **how)


class Zero3:
    def __init__(self, o):
        os.environ.update(DS_ACCELERATOR=o.device, RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
        try:
            import deepspeed
        except ImportError:
            leave("deepspeed")
        self.versions = {"deepspeed": deepspeed.__version__}
        join_group_of_one()
        deepspeed.init_distributed()
        model, host = load_model(o, torch.bfloat16 if o.dtype == "bf16" else torch.float32), {"device": "cpu"}
        if o.device != "cpu":
            host["pin_memory"] = True
        self.engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
            "train_micro_batch_size_per_gpu": o.micro, "gradient_accumulation_steps": o.batch // o.micro,
            "gradient_clipping": 1.0, "bf16": {"enabled": o.dtype == "bf16"},
            "zero_optimization": {"stage": 3, "offload_optimizer": host, "offload_param": host},
            "optimizer": {"type": "AdamW", "params": {"lr": o.lr, "weight_decay": 0.0}}})[0]

    def step(self, micros):
        losses = []
        for rows in micros:
            losses.append(loss_of(self.engine, rows))
            self.engine.backward(losses[-1])
            self.engine.step()
        return losses


TRAINERS = {"torch": Torch, "zero3": Zero3, "fsdp2": Fsdp2}


def main():
    o = options()
    if o.device != "cpu" and not torch.cuda.is_available():
        leave("GPU that torch sees")
    torch.set_num_threads(o.threads)
    trainer = TRAINERS[o.by](o)
    answer({"torch": torch.__version__, "transformers": transformers.__version__, **trainer.versions})
    steps = batches(o.records, o.batch, o.seq)
    for line in sys.stdin:
        losses, seconds = [], []
        for _ in range(int(line)):
            micros = next(steps).to(o.device).split(o.micro)
            start = time.perf_counter()
            losses.append(torch.stack([x.detach() for x in trainer.step(micros)]).mean().item())
            seconds.append(time.perf_counter() - start)
        answer({"losses": losses, "seconds": seconds})


if __name__ == "__main__":
    main()
