"""An LLM of vLLM for vllm_suite.py: does what its standard input says, a line each; replies with JSON.

    vllm_engine.py MODEL [SHARE]

sleep LEVEL, wake, generate. SHARE of the GPU's memory (default 0.4). With NEAP_VLLM=1 on Neap's allocator.
"""

import json
import os
import subprocess
import sys
import time

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine in this process, so that its memory is too


def card_mib():
    """This process's memory on the card by nvidia-smi."""
    done = subprocess.run(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"], capture_output=True, text=True)
    for line in done.stdout.splitlines():
        pid, _, used = line.partition(",")
        if pid.strip() == str(os.getpid()) and used.strip().isdigit():
            return int(used)
    return None


def host_mib():
    """This process's host memory, pinned memory included."""
    status = open("/proc/self/status").read()
    return int(status.partition("VmRSS:")[2].split()[0]) >> 10


def main():
    import torch
    from vllm import LLM, SamplingParams
    from vllm.device_allocator import get_mem_allocator_instance

    llm = LLM(sys.argv[1], load_format="dummy", enable_sleep_mode=True, gpu_memory_utilization=float(sys.argv[2] if len(sys.argv) > 2 else 0.4),
              kv_cache_memory_bytes=12 << 30,  # no measuring of free memory, which the other engine uses meanwhile
              max_model_len=4096, max_num_seqs=64, enable_prefix_caching=False,
              compilation_config={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64]})
    allocator = get_mem_allocator_instance()

    def reply(**values):
        print("reply " + json.dumps(values), flush=True)

    def used():
        free, total = torch.cuda.mem_get_info()
        return (total - free) >> 20

    reply(allocator=type(allocator).__module__, awake_mib=card_mib(), card_used_mib=used(), in_pools_mib=allocator.get_current_usage() >> 20)
    for line in sys.stdin:
        what, _, argument = line.strip().partition(" ")
        torch.cuda.synchronize()
        begin = time.perf_counter()
        if what == "sleep":
            llm.sleep(level=int(argument))
            reply(sleep_s=round(time.perf_counter() - begin, 4), asleep_mib=card_mib(), card_used_mib=used(), host_mib=host_mib(),
                  torch_reserved_mib=torch.cuda.memory_reserved() >> 20, in_pools_mib=allocator.get_current_usage() >> 20)
        elif what == "wake":
            llm.wake_up()
            torch.cuda.synchronize()
            reply(wake_s=round(time.perf_counter() - begin, 4), awake_mib=card_mib())
        elif what == "generate":
            outputs = llm.generate([{"prompt_token_ids": [3 + i, 40, 50, 60]} for i in range(8)],
                                   SamplingParams(temperature=0, max_tokens=48, ignore_eos=True, detokenize=False), use_tqdm=False)
            reply(text=[list(output.outputs[0].token_ids) for output in outputs])


if __name__ == "__main__":
    main()
