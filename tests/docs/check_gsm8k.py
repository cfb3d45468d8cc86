#!/usr/bin/env python3
"""The table of examples/gsm8k/README.md is what `neap plan` says of its files. usage: check_gsm8k.py NEAP GSM8K"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROW = re.compile(r"\| ([\w.-]+) \| (\d+) GiB \| ([\d.]+) GiB \| ([\d.]+) GiB \| (\w+) \|")
GIB = 1 << 30


def main():
    neap, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    wrong, seen = [], 0
    with tempfile.TemporaryDirectory() as home:  # rates that a doctor measured on this machine are not read
        environment = dict(os.environ, HOME=home, XDG_CACHE_HOME=home)
        for line in (folder / "README.md").read_text().splitlines():
            found = ROW.match(line)
            if not found:
                continue
            seen += 1
            model, ceiling, *said = found.groups()
            result = subprocess.run([neap, "plan", folder / f"{model.lower()}.toml", f"device.memory={ceiling}GiB", "--json"],
                                    capture_output=True, text=True, env=environment, check=True)
            plan = json.loads(result.stdout)
            planned = [f"{plan['peak'] / GIB:.1f}", f"{plan['copied_per_step'] / GIB:.1f}", plan["optimizer_offload"]["actor"]]
            if planned != said or not plan["fits"]:
                wrong.append(f"{model}, {ceiling} GiB: the README says {said}, the plan {planned}")
            if f"{plan['alternatives']['min_capacity'] / GIB:.1f}" not in (folder / "README.md").read_text():
                wrong.append(f"{model}: the README does not name the least ceiling {plan['alternatives']['min_capacity'] / GIB:.1f} GiB")
    print("\n".join(wrong) or f"{seen} plans are as the README says")
    return 1 if wrong or seen < 7 else 0


if __name__ == "__main__":
    sys.exit(main())
