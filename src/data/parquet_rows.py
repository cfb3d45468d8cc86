"""Writes the rows of a Parquet file as JSON lines: arguments FILE LONGEST.

`#rows N` comes first and `#end` last. `#missing TEXT` reports that pyarrow cannot be imported. `#error TEXT` reports why
the remaining rows are missing. Null members are omitted, as JSONL files do. NaN and binary values are also omitted.
"""
import datetime
import decimal
import json
import math
import os
import resource
import signal
import sys

# Limits per byte of the file, and fixed ones: a file must neither use up the machine's memory nor
# take days.
MOST_MEMORY = 16 << 30
MEMORY = 4 << 30
UNPACKING = 1000
ALLOWANCE = 64 << 20
SECONDS, BYTES_OF_SECOND = 120, 100_000
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


def set_limits(size):
    """Limits memory and processor time for a file of `size` bytes. Call it after pyarrow is loaded."""
    with open("/proc/self/statm") as file:
        loaded = int(file.read().split()[0]) * resource.getpagesize()
    used = resource.getrusage(resource.RUSAGE_SELF)
    for limit, most in (
        (resource.RLIMIT_AS, loaded + min(MEMORY + UNPACKING * size, MOST_MEMORY)),
        (resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + SECONDS + size // BYTES_OF_SECOND),
    ):
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (most if hard < 0 else min(most, hard), hard))

    def too_long(*_):
        raise ValueError(f"it takes more than {SECONDS + size // BYTES_OF_SECOND} s of processor time")

    signal.signal(signal.SIGXCPU, too_long)


def write_rows(parquet, path, longest, out):
    left = ALLOWANCE + UNPACKING * os.path.getsize(path)
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
                    raise ValueError(f"row {number} has {len(text)} bytes, over the limit of {longest}")
                left -= ROW + len(text)
                if left < 0:
                    raise ValueError(f"it unpacks to more than {UNPACKING} times its size, as decompression bombs do")
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
        set_limits(os.path.getsize(sys.argv[1]))
        write_rows(parquet, sys.argv[1], int(sys.argv[2]), out)
    except BrokenPipeError:
        raise
    except Exception as error:  # the library may raise anything for a damaged file
        text = " ".join(f"{error or type(error).__name__}".split())
        out.write(f"#error {text}\n".encode(errors="replace"))


main()
