"""Writes scalars.tfevents with TensorBoard's own messages and record writer (pip install tensorboard)."""
import pathlib

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter


def scalars(time, step, values):
    summary = summary_pb2.Summary(
        value=[summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in sorted(values.items())])
    return event_pb2.Event(wall_time=time, step=step, summary=summary)


with open(pathlib.Path(__file__).with_name("scalars.tfevents"), "wb") as file:
    writer = RecordWriter(file)
    writer.write(event_pb2.Event(wall_time=1700000000.25, file_version="brain.Event:2").SerializeToString())
    writer.write(scalars(1700000001.5, 3, {"actor/ppo_kl": 0.0012345, "timing_s/gen": 1.5}).SerializeToString())
    writer.write(scalars(1700000002.75, 300000, {"critic/vf_loss": -7.25e10}).SerializeToString())
