"""Clocks and power of the GPU while something runs, by nvidia-smi."""
import os
import statistics
import subprocess
import threading
import time


class GpuState:
    """Samples several times a second until stop(). Without nvidia-smi it knows nothing."""

    def __init__(self):
        gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
        query = ["nvidia-smi", "-i", gpu, "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits",
                 "-lms", "100"]
        self.samples = []
        try:
            self.process = subprocess.Popen(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            self.process = None
            return
        threading.Thread(target=self._collect, daemon=True).start()

    def _collect(self):
        for line in self.process.stdout:
            try:
                clock, power = (float(field) for field in line.split(","))
            except ValueError:
                continue
            self.samples.append((time.monotonic(), clock, power))

    def since(self, begin):
        """Medians of what was seen after time.monotonic() was `begin`, as keys of a row."""
        seen = [(clock, power) for when, clock, power in list(self.samples) if when >= begin]
        if not seen:
            return {}
        return {"clock_mhz": statistics.median(clock for clock, _ in seen),
                "power_w": statistics.median(power for _, power in seen)}

    def stop(self):
        if self.process:
            self.process.terminate()
            self.process.wait()
