"""Writes the rows of a Parquet file as JSON lines: arguments FILE LIMITS.

LIMITS: "PART MEMORY UNPACKED SECONDS" of ReadLimits. `#rows N` comes first and `#end` last. `#missing TEXT` reports that
pyarrow cannot be imported. `#over LIMIT` and `#error TEXT` report why the remaining rows are missing. Null members are omitted,
as JSONL files do. NaN and binary values are also omitted.
"""
import datetime
import decimal
import json
import math
import resource
import signal
import sys

ROW = 256  # fixed cost of a row, in bytes
BATCH = 256


def plain(value):
    """`value` as JSON; None if it is omitted."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        if math.isinf(value):
            raise ValueError("a number is infinite")
        return None if math.isnan(value) else value
    if isinstance(value, dict):
        members = ((key, plain(member)) for key, member in value.items())
        return {key: member for key, member in members if member is not None}
    if isinstance(value, list):
        if value and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):  # a map
            return plain({str(key): member for key, member in value})
        return [plain(member) for member in value]
    if isinstance(value, bytes):
        return None
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    raise ValueError(f"a value is {type(value).__name__}, which JSON has not")


class Over(Exception):
    """A limit is exceeded: "part", "memory", "unpacked" or "seconds"."""


def set_limits(memory, seconds):
    """Limits memory and processor time. Call it after pyarrow is loaded."""
    with open("/proc/self/statm") as file:
        loaded = int(file.read().split()[0]) * resource.getpagesize()
    used = resource.getrusage(resource.RUSAGE_SELF)
    for limit, most in (
        (resource.RLIMIT_AS, loaded + memory),
        (resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + seconds),
    ):
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (most if hard < 0 else min(most, hard), hard))

    def too_long(*_):
        raise Over("seconds")

    signal.signal(signal.SIGXCPU, too_long)


def write_rows(parquet, path, longest, left, out):
    with parquet.ParquetFile(path, buffer_size=1 << 20) as file:
        out.write(b"#rows %d\n" % file.metadata.num_rows)
        number = 0
        for batch in file.iter_batches(batch_size=BATCH, use_threads=False):
            left -= batch.nbytes
            for row in batch.to_pylist():
                number += 1
                try:
                    text = json.dumps(plain(row), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
                except (ValueError, RecursionError) as error:
                    raise ValueError(f"row {number}: {error}") from error
                if len(text) > longest:
                    raise Over("part")
                left -= ROW + len(text)
                if left < 0:
                    raise Over("unpacked")
                out.write(text + b"\n")
        if number != file.metadata.num_rows:
            raise ValueError(f"it ends after {number} of {file.metadata.num_rows} rows")
        out.write(b"#end\n")


def main():
    out = sys.stdout.buffer
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        out.write(f"#missing {error}\n".encode())
        return
    try:
        longest, memory, unpacked, seconds = map(int, sys.argv[2].split())
        set_limits(memory, seconds)
        write_rows(parquet, sys.argv[1], longest, unpacked, out)
    except BrokenPipeError:
        raise
    except Over as error:
        out.write(f"#over {error}\n".encode())
    except MemoryError:  # pyarrow's is derived from it
        out.write(b"#over memory\n")
    except Exception as error:  # the library may raise anything for a damaged file
        text = " ".join(f"{error or type(error).__name__}".split())
        out.write(f"#error {text}\n".encode(errors="replace"))


main()
