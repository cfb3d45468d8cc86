"""Lets a real torch, as pip installs it, run over the stand-in CUDA libraries: its Python, its caching
allocator, memory pools and captures are its own, kernels do nothing.

    python3 real_torch.py SITE STANDIN OUT

SITE is the folder with torch/, STANDIN the one with the stand-in libcuda and libcudart. OUT gets what else
torch links: empty libraries under the names of NVIDIA's, and one with every symbol that is still missing.
Prints the LD_PRELOAD that goes with LD_LIBRARY_PATH=OUT:STANDIN.
"""

import re
import subprocess
import sys
from pathlib import Path

NVIDIAS = re.compile(r"lib(cu|nv|nccl)")
SYMBOLS = re.compile(r"^(cu|nccl|nv|__cuda|__nv)")


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def symbols(library, *options):
    return {line.split()[-1].partition("@")[0] for line in output("nm", "-D", *options, str(library)).splitlines()}


def compile_library(path, source):
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-fno-builtin", "-x", "c", "-", "-o", str(path), f"-Wl,-soname,{path.name}"],
                   input=source, text=True, check=True)


def prepare(site, standin, out):
    out.mkdir(parents=True, exist_ok=True)
    libraries = sorted((site / "torch" / "lib").glob("*.so*"))
    own = {library.name for library in libraries}
    needed, missing, defined = set(), set(), set()
    for library in libraries:
        needed |= set(re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-d", str(library))))
        missing |= symbols(library, "--undefined-only")
        defined |= symbols(library, "--defined-only")
    needed = {name for name in needed - own if NVIDIAS.match(name)}
    [runtime] = [standin / name for name in needed if name.startswith("libcudart.so")]
    rest = sorted(name for name in missing - defined - symbols(runtime, "--defined-only") if SYMBOLS.match(name))
    compile_library(out / "libstandin_rest.so", "".join(f"int {name}(){{return 0;}}\n" for name in rest))
    for name in needed - {runtime.name, "libcuda.so.1"}:
        compile_library(out / name, "")
    # By name, because torch looks beside itself first, where the real ones may lie.
    return [str(out / "libstandin_rest.so"), str(runtime)] + [str(out / name) for name in sorted(needed) if name.startswith("libcupti")]


if __name__ == "__main__":
    print(":".join(prepare(*map(Path, sys.argv[1:4]))))
