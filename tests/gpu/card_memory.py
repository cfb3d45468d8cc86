"""How much memory of the cards is taken."""
import shutil
import subprocess
import threading


class CardMemory:
    """The most memory of each card that all programs together used meanwhile, in MiB; none without nvidia-smi."""

    def __enter__(self):
        self.most, self.ended, self.smi = [], threading.Event(), shutil.which("nvidia-smi")
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()

    def watch(self):
        while self.smi and not self.ended.wait(0.5):
            done = subprocess.run([self.smi, "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True,
                                  check=False)
            used = [int(word) for word in done.stdout.split() if word.isdigit()]
            self.most = [max(pair) for pair in zip(used, self.most or used)]
