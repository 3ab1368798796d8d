"""Records what torch.profiler writes of several process groups, of FSDP and of send and receive, on every rank.

    torchrun --standalone --nproc-per-node 2 benchmarks/record_ranks.py [FOLDER]      (4 processes work as well)

NCCL if there are as many GPUs as local processes, else gloo. One folder a kind, one file a rank:
FOLDER/KIND/rankN.json. FOLDER defaults to ./recorded_ranks. What this machine cannot do is skipped with a line.

    ddp           DistributedDataParallel alone, in balance: one group
    straggler     the same, rank 0 sleeps 3 ms a step
    late_start    the same, rank 0 sleeps 50 ms before the first recorded step only
    two_groups    DDP, plus an all-reduce in a second group: of all ranks (2 processes), of neighbours (4 and more)
    disjoint      every rank (2 processes) or every pair has a group of its own, of one name, and no other collective
    mesh          a 2-D device mesh (dp x tp), an all-reduce in each dimension, all-gather in tp
    fsdp          fully_shard over all ranks
    hybrid        fully_shard over a 2-D mesh (replicate x shard), from four processes on; with two 1 x 2
    pipeline      rank r waits for rank r-1's activations (send, recv), computes and sends on
    batched       the same with batch_isend_irecv both ways
    coalesced     several all-reduces of one coalescing manager, all_to_all, barrier
"""

import os
import sys
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LOCAL, LOCAL_SIZE = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
CUDA = torch.cuda.is_available() and torch.cuda.device_count() >= LOCAL_SIZE
DEVICE = torch.device("cuda", LOCAL) if CUDA else torch.device("cpu")
WIDTH = 2048 if CUDA else 128
FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "recorded_ranks")


def mlp(layers=4):
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(layers)]).to(DEVICE)


def data():
    return torch.randn(256 if CUDA else 16, WIDTH, device=DEVICE)


def train(model, extra=lambda: None, before=lambda step: None):
    optimizer, x = torch.optim.SGD(model.parameters(), lr=1e-4), data()

    def step(number):
        before(number)
        optimizer.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        extra()
        optimizer.step()

    return step


def parallel():
    return nn.parallel.DistributedDataParallel(mlp(), device_ids=[LOCAL] if CUDA else None)


def ddp():
    return train(parallel())


def straggler():
    return train(parallel(), before=lambda step: time.sleep(0.003) if RANK == 0 else None)


def late_start():
    return train(parallel(), before=lambda step: time.sleep(0.05) if RANK == 0 and step == FIRST else None)


def neighbours(description=None):
    """This rank's group: of two neighbours, or of all where there are only two."""
    pairs = [list(range(SIZE))] if SIZE < 4 else [[r, r + 1] for r in range(0, SIZE, 2)]
    groups = [dist.new_group(pair, group_desc=description) for pair in pairs]
    return next(group for group, pair in zip(groups, pairs, strict=True) if RANK in pair)


def two_groups():
    group, y = neighbours("tp"), torch.ones(WIDTH, WIDTH, device=DEVICE)
    return train(parallel(), extra=lambda: dist.all_reduce(y, group=group))


def disjoint():
    pairs = [[r] for r in range(SIZE)] if SIZE < 4 else [[r, r + 1] for r in range(0, SIZE, 2)]
    groups = [dist.new_group(pair, group_desc="tp", use_local_synchronization=False) for pair in pairs]
    group = next(group for group, pair in zip(groups, pairs, strict=True) if RANK in pair)
    y = torch.ones(WIDTH, WIDTH, device=DEVICE)
    return train(mlp(), extra=lambda: dist.all_reduce(y, group=group))


def grid():
    from torch.distributed.device_mesh import init_device_mesh

    shape = (1, SIZE) if SIZE < 4 else (SIZE // 2, 2)
    return init_device_mesh(DEVICE.type, shape, mesh_dim_names=("dp", "tp"))


def mesh():
    both = grid()
    dp, tp = both.get_group("dp"), both.get_group("tp")
    y = torch.ones(WIDTH, WIDTH, device=DEVICE)
    parts = [torch.empty_like(y) for _ in range(dist.get_world_size(tp))]

    def extra():
        dist.all_reduce(y, group=tp)
        dist.all_gather(parts, y, group=tp)
        dist.all_reduce(y, group=dp)

    return train(mlp(), extra=extra)


def fsdp():
    from torch.distributed.fsdp import fully_shard

    model = mlp()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return train(model)


def hybrid():
    from torch.distributed.fsdp import fully_shard

    both, model = grid(), mlp()
    for layer in model:
        fully_shard(layer, mesh=both)
    fully_shard(model, mesh=both)
    return train(model)


def pipeline():
    model, x = mlp(), data()
    y = torch.empty_like(x)

    def step(number):
        if RANK > 0:
            dist.recv(y, src=RANK - 1)
        with torch.no_grad():
            out = model(y if RANK > 0 else x)
        if RANK < SIZE - 1:
            dist.send(out.contiguous(), dst=RANK + 1)

    return step


def batched():
    model, x = mlp(), data()
    y, back = torch.empty_like(x), torch.empty_like(x)
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE

    def step(number):
        with torch.no_grad():
            out = model(x)
        operations = [dist.P2POp(dist.isend, out, right), dist.P2POp(dist.irecv, y, left)]
        if SIZE > 2:
            operations += [dist.P2POp(dist.isend, out, left), dist.P2POp(dist.irecv, back, right)]
        for request in dist.batch_isend_irecv(operations):
            request.wait()

    return step


def coalesced():
    tensors = [torch.ones(WIDTH, WIDTH, device=DEVICE) for _ in range(3)]
    source, target = (torch.ones(SIZE * WIDTH, device=DEVICE) for _ in range(2))

    def extra():
        if CUDA:
            with dist._coalescing_manager(async_ops=False):
                for tensor in tensors:
                    dist.all_reduce(tensor)
            dist.all_to_all_single(target, source)
        dist.barrier()

    return train(mlp(), extra=extra)


FIRST = 3
KINDS = [ddp, straggler, late_start, two_groups, disjoint, mesh, fsdp, hybrid, pipeline, batched, coalesced]


def record(kind):
    step = kind()
    path = FOLDER / kind.__name__ / f"rank{RANK}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if CUDA else [])]
    with profile(
        activities=activities,
        schedule=schedule(wait=2, warmup=1, active=4, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(str(path)),
    ) as profiler:
        for number in range(7):
            step(number)
            profiler.step()
    dist.barrier()
    if CUDA:
        torch.cuda.synchronize()


def main():
    if CUDA:
        torch.cuda.set_device(LOCAL)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if CUDA else "gloo", device_id=DEVICE if CUDA else None)
    for kind in KINDS:
        try:
            record(kind)
            said = "recorded"
        except Exception as error:  # a kind that this machine cannot do
            said = f"skipped: {type(error).__name__}: {str(error).splitlines()[0][:150]}"
            if "-v" in sys.argv:
                traceback.print_exc()
        if RANK == 0:
            print(f"{kind.__name__:12} {said}", flush=True)
    dist.barrier()
    os._exit(0)  # gloo's threads sometimes abort the interpreter's own end


main()
