"""A small language model trained in one way of sharing it: ``ranks.py WAY``; prints the peaks of its rank.

To be started by torchrun, or as one rank alone.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional
from torch.nn.functional import cross_entropy, gelu

WIDTH, BLOCKS, WORDS, LINES, TOKENS, STEPS = 512, 4, 8000, 4, 256, 3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mixed = nn.Linear(WIDTH, 3 * WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        heads = self.mixed(self.norm(x)).unflatten(-1, (3, 8, -1)).transpose(1, 3)
        mixed = functional.scaled_dot_product_attention(*heads.unbind(2), is_causal=True)
        x = x + mixed.transpose(1, 2).flatten(2)
        return x + self.down(gelu(self.up(x)))


class Model(nn.Module):
    def __init__(self, blocks=BLOCKS):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x):
        x = self.words(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def loss_of(outputs, words):
    return cross_entropy(outputs.flatten(0, 1), words.flatten())


def train(model, device, **options):
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    for _ in range(STEPS):
        words = torch.randint(WORDS, (LINES, TOKENS), device=device)
        loss_of(model(words), words).backward()
        optimizer.step()
        optimizer.zero_grad()


def ddp(device):
    train(
        nn.parallel.DistributedDataParallel(Model().to(device), device_ids=[device.index]), device
    )


def fsdp(device):
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    policy = ModuleWrapPolicy({Block})
    train(FullyShardedDataParallel(Model(), auto_wrap_policy=policy, device_id=device), device)


def fsdp2(device):
    from torch.distributed.fsdp import fully_shard

    model = Model().to(device)
    for block in model.blocks:
        fully_shard(block)
    train(fully_shard(model), device)


def fsdp2_meta(device):
    """Weights are filled in as DTensors, after they were sharded."""
    from torch.distributed.fsdp import fully_shard

    with torch.device("meta"):
        model = Model()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    model.to_empty(device=device)
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    train(model, device)


def tensor(device):
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    model = Model().to(device)
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    train(model, device, foreach=False)


class Stage(nn.Module):
    """What one rank of a pipeline has: two blocks, the first rank the embedding, the last the head."""

    def __init__(self, rank, world):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH) if rank == 0 else nn.Identity()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, WORDS) if rank == world - 1 else nn.Identity()

    def forward(self, x):
        return self.head(self.blocks(self.words(x)))


def pipeline(device, gives_shapes=True):
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, world = dist.get_rank(), dist.get_world_size()
    shapes = {}
    words = torch.randint(WORDS, (LINES, TOKENS), device=device)
    if gives_shapes:
        with torch.device("meta"):
            between = torch.empty(1, TOKENS, WIDTH, requires_grad=True)
            shapes["input_args"] = words[:1].to("meta") if rank == 0 else between
            last = torch.empty(1, TOKENS, WORDS, requires_grad=True)
            shapes["output_args"] = last if rank == world - 1 else between
    stage = PipelineStage(Stage(rank, world).to(device), rank, world, device, **shapes)
    schedule = ScheduleGPipe(stage, LINES, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(stage.submod.parameters())
    for _ in range(STEPS):
        given = [words] if rank == 0 else []
        target = {"target": words} if rank == world - 1 else {}
        schedule.step(*given, **target)
        optimizer.step()
        optimizer.zero_grad()


def pipeline_bare(device):
    pipeline(device, gives_shapes=False)


def context(device):
    from torch.distributed.tensor.experimental import context_parallel

    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        words = torch.randint(WORDS, (LINES, TOKENS), device=device)
        with context_parallel(mesh, buffers=[words], buffer_seq_dims=[1]):
            loss_of(model(words), words).backward()
            optimizer.step()
            optimizer.zero_grad()


def experts(device):
    """Each rank sends tokens to the others, as many to each."""
    world = dist.get_world_size()
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        words = torch.randint(WORDS, (LINES * world, TOKENS), device=device)
        received = torch.empty_like(words)
        dist.all_to_all_single(received, words)
        loss_of(model(received), received).backward()
        optimizer.step()
        optimizer.zero_grad()


WAYS = {
    way.__name__: way
    for way in (ddp, fsdp, fsdp2, fsdp2_meta, tensor, pipeline, pipeline_bare, context, experts)
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=WAYS)
    way = WAYS[parser.parse_args().way]
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    way(device)
    peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"peaks of rank {dist.get_rank()}:", *peaks, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
