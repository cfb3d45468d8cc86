"""`neap doctor` on the stand-in driver keeps what it measured, and `neap plan` reads it.

usage: doctor_test.py NEAP STANDIN_DIR CONFIG WORK_DIR
"""

import json
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "train"))
import neap_program  # noqa: E402

NEAP, STANDIN, CONFIG, WORK = sys.argv[1:5]
CACHE = Path(WORK) / "doctor_cache"


def neap(*arguments, **changes):
    environment = neap_program.environment(["NEAP_"], LD_LIBRARY_PATH=STANDIN, NEAP_STANDIN_BYTES=str(256 << 20), NEAP_STANDIN_DEVICES="2",
                                           XDG_CACHE_HOME=str(CACHE))
    return neap_program.run(NEAP, *arguments, env=environment | changes, timeout=100)


def plan(**changes):
    done = neap("plan", CONFIG, "--capacity", "79GiB", "--json", **changes)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def measures_keeps_and_plans_with_it():
    before, _ = plan()
    assert before["throughput_from"].startswith("measured on an H200; neap doctor"), before["throughput_from"]
    assert not CACHE.exists()
    done = neap("doctor", "--json")
    assert done.returncode == 0, done.stderr
    doctor = json.loads(done.stdout)
    first, second = [d for d in doctor["devices"] if d["name"].startswith("stand-in")]
    records = [json.loads(Path(d["rates_file"]).read_text()) for d in (first, second)]
    for device, record in zip((first, second), records):
        assert record["schema"] == 2 and record["gpu"] == device["name"] and record["driver"] == 13000
        assert record["to_host"] == device["to_host_gbps"] * 1e9 > 1e8, record
        assert record["memory"] > 1e8 and record["remap"] > 0 and record["both"] > 1e8, record
    after, said = plan()
    assert after["throughput_from"].startswith(f"measured on {records[0]['date']} by neap doctor"), after["throughput_from"]
    assert after["link"]["both"] == records[0]["both"] and after["link"]["remap"] == records[0]["remap"]
    assert "rates" not in said, said
    # The host device has no record: its plans stay what they are.
    assert len(list((CACHE / "neap" / "rates").iterdir())) == 2


def a_broken_record_is_one_message():
    for file in (CACHE / "neap" / "rates").iterdir():
        file.write_text("{}")
    result, said = plan()
    assert result["throughput_from"].startswith("measured on an H200"), result["throughput_from"]
    lines = [line for line in said.splitlines() if "holds no record of rates" in line]
    assert len(lines) == 1 and str(CACHE) in lines[0] and "ignored" in lines[0], said
    neap("doctor")
    result, said = plan()
    assert "by neap doctor" in result["throughput_from"] and said == "", said


def says_where_it_cannot_keep():
    shutil.rmtree(CACHE)
    assert neap("doctor", "--quick").returncode == 0 and not CACHE.exists()
    done = neap("doctor", XDG_CACHE_HOME="", HOME="")
    assert done.returncode == 0
    assert "Plans cannot use what was measured: Neither XDG_CACHE_HOME nor HOME" in done.stdout, done.stdout


def shows_the_settings_in_effect():
    doctor = json.loads(neap("doctor", "--quick", "--json", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True").stdout)
    assert doctor["environment"]["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True", doctor["environment"]
    text = neap("doctor", "--quick", OMP_NUM_THREADS="3").stdout
    settings = text.split("Settings in effect", 1)[1].split("Advice", 1)[0].split()
    assert settings[settings.index("OMP_NUM_THREADS") + 1] == "3", text


def leaves_room_for_kernels_that_load_later():
    size = 140 << 30
    done = neap("plan", CONFIG, "--json", "device.memory=0B", NEAP_STANDIN_BYTES=str(size))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["capacity"] == size - (272 << 20), done.stdout[:400]


def shows_where_files_are_made():
    for folder, shown in ((WORK, WORK), ("", "/tmp")):
        system = json.loads(neap("doctor", "--quick", "--json", TMPDIR=folder).stdout)["system"]
        assert system["temporary_folder"] == shown and system["temporary_folder_free"] > 0, system


def tells_what_a_container_may_take():
    if not neap_program.has_namespaces():
        return
    groups = "mount -t tmpfs tmpfs /sys/fs/cgroup && cd /sys/fs/cgroup && echo 5368709120 > memory.max && echo 2147483648 > memory.current"
    script = f"{groups} && echo inactive_file 1073741824 > memory.stat && exec \"$0\" doctor --quick --json"
    done = neap_program.run(*neap_program.NAMESPACE, "sh", "-c", script, NEAP, env=neap_program.environment(["NEAP_"]), timeout=100)
    assert done.returncode == 0, done.stderr
    doctor = json.loads(done.stdout)
    assert doctor["system"]["host_memory_available"] == 4 << 30, doctor["system"]
    assert any("Only 4 GiB of host memory" in line for line in doctor["advice"]), doctor["advice"]


shutil.rmtree(CACHE, ignore_errors=True)
for case in (measures_keeps_and_plans_with_it, a_broken_record_is_one_message, says_where_it_cannot_keep, shows_the_settings_in_effect,
             leaves_room_for_kernels_that_load_later, shows_where_files_are_made, tells_what_a_container_may_take):
    case()
    print(f"ok {case.__name__}")
shutil.rmtree(CACHE, ignore_errors=True)
