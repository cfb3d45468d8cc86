"""One of two ranks that gather through NCCL in a captured graph whose buffers pause and resume.

    nccl_graph_rank.py RANK PORT HOW      HOW: default, keep_resident, registered

Prints "wrong N": in how many of the replays a rank's half was not what that rank had sent. NCCL
registers such buffers for the graph's life by the pages they have at capture; by default a region
switches that off. "registered" has it on: what happens without Neap's care.
"""

import os
import sys

import torch
import torch.distributed as dist

import neap

MIB = 1 << 20
COUNT = 4 * MIB


def main():
    rank, port, how = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    if how != "default":
        os.environ["NCCL_GRAPH_REGISTER"] = "1"
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2, device_id=torch.device("cuda", rank))
    warm = torch.ones(COUNT, device="cuda"), torch.empty(2 * COUNT, device="cuda")
    for _ in range(3):
        dist.all_gather_into_tensor(warm[1], warm[0])
    torch.cuda.synchronize()
    with neap.region("payload", policy="host"):
        sent = torch.zeros(COUNT, device="cuda")
        gathered = torch.zeros(2 * COUNT, device="cuda")
    if how == "keep_resident":
        assert neap.keep_resident(sent) >= sent.nbytes
        assert neap.keep_resident(gathered) >= gathered.nbytes
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_gather_into_tensor(gathered, sent)
    wrong, hogs = 0, []
    for cycle in range(5):
        if cycle > 0:
            neap.pause("payload")
            # Somebody else gets the pages, as in real life.
            hogs.append(torch.full((256 * MIB,), 77, dtype=torch.uint8, device="cuda"))
            neap.resume("payload")
        sent.fill_(100 * cycle + rank + 1)
        gathered.fill_(-1)
        torch.cuda.synchronize()
        dist.barrier()
        graph.replay()
        torch.cuda.synchronize()
        for peer, half in enumerate(gathered.view(2, COUNT)):
            wrong += int((half != 100 * cycle + peer + 1).any())
    print("wrong", wrong, flush=True)
    os._exit(0)  # a graph with stale registrations may hang in NCCL's own ending


if __name__ == "__main__":
    main()
