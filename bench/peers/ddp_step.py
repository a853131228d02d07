"""A LoRA training step under PyTorch's DistributedDataParallel, beside the same step on each device alone.

    python bench/peers/ddp_step.py --model sdxl|flux|llm [--path DIR] [--devices 2] [--steps 20]

The steps are those of sdxl_step.py, flow_step.py and llm_step.py (batch 1, bf16 LoRA on f32 masters, blocks compiled where those
compile them). A process for each device: first each device alone in turn, then all together, twice. Rank 0 prints a line of JSON
with the medians by CUDA events. --path: SDXL's and the language model's folder; FLUX.1's weights are random.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from rows import emit, timed


def make_sdxl(args):
    import sdxl_step
    torch.backends.cudnn.benchmark = True
    step = sdxl_step.Step(argparse.Namespace(model=args.path, mode="default", scope="blocks", adapter="lora", rank=32, lokr_factor=-1,
                                             side=128, device="cuda"))
    step.prepare(1, False, "master", "channels_first")
    return step


def make_flux(args):
    import flow_step
    step = flow_step.Step(argparse.Namespace(model="flux", batch=1, height=128, width=128, rank=16))
    step.adapt()
    step.model.disable_gradient_checkpointing()
    return step


def make_llm(args):
    import llm_step
    return llm_step.Step(argparse.Namespace(model=args.path, batch=1, sequence=2048, rank=16, checkpoint=False, compile=False), "master")


MAKE = {"sdxl": make_sdxl, "flux": make_flux, "llm": make_llm}


def of_all(rank, value):
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def work(args, rank):
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    torch.manual_seed(rank)
    step = MAKE[args.model](args)
    one = step.train if args.model == "flux" else step
    model = step.model
    wrapped = DistributedDataParallel(model, device_ids=[0], gradient_as_bucket_view=True)
    alone, together = [], []
    for turn in range(2):
        for device in range(args.devices):
            if device == rank:
                step.model = model
                timed(one, 4)
                alone += timed(one, args.steps)
            dist.barrier()
        step.model = wrapped
        timed(one, 4)
        together += timed(one, args.steps)
        dist.barrier()
    alone = of_all(rank, statistics.median(alone))
    together = of_all(rank, statistics.median(together))
    if rank == 0:
        emit(bench="ddp_step", model=args.model, devices=args.devices, alone_ms=[round(t, 2) for t in alone],
             together_ms=round(max(together), 2), ratio=round(max(together) / max(alone), 3), device=torch.cuda.get_device_name())
    dist.destroy_process_group()


def start(args, rank, port):
    """Each process sees its own device alone, which is the first that the steps take."""
    variables = {"RANK": str(rank), "WORLD_SIZE": str(args.devices), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                 "CUDA_VISIBLE_DEVICES": str(rank)}
    return subprocess.Popen([sys.executable, *sys.argv], env=os.environ | variables)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, choices=list(MAKE))
    parser.add_argument("--path")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    if "RANK" in os.environ:
        return work(args, int(os.environ["RANK"]))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [start(args, rank, port) for rank in range(args.devices)]
    sys.exit(max(process.wait() for process in processes))


if __name__ == "__main__":
    main()
