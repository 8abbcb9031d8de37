"""Our side: a tw_bench process that answers a line of JSON with a line of JSON."""
import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PLACES = ("build/release/bench/tw_bench", "build/portable/bench/tw_bench", "carry/bench/tw_bench")
LIBRARIES = {"unknown": "libunknown_kernels.so"}  # of suites whose kernels tw_bench does not have itself
LIBRARY_PLACES = ("tests/unknown", "lib")  # beside tw_bench's folder: of a build, of carry/


class ProgramError(Exception):
    """tw_bench refused a command, or is not there."""


class Unavailable(ProgramError):
    """The catalog has no such kernel."""


def find_program(given=None):
    if given:
        return Path(given)
    for place in PLACES:
        if (ROOT / place).exists():
            return ROOT / place
    raise ProgramError(f"tw_bench was not found in {', '.join(PLACES)} of {ROOT}; build it, or give --program PATH")


def library_of(suite, path):
    """What the tw_bench at `path` loads for the suite; None if it has the kernels itself."""
    if suite not in LIBRARIES:
        return None
    top = Path(path).resolve().parent.parent
    for place in LIBRARY_PLACES:
        if (found := top / place / LIBRARIES[suite]).exists():
            return found
    raise ProgramError(f"{LIBRARIES[suite]} was not found in {', '.join(LIBRARY_PLACES)} of {top}; build it, "
                       f"the target {LIBRARIES[suite][3:-3]}")


class Program:
    """with Program(path, "cuda") as ours: ours.ask("burst", n=20)["ms"]"""

    def __init__(self, path, device, cache=None, library=None):
        self.path, self.device, self.library = path, device, library
        self.environment = dict(os.environ, TW_CACHE_DIR=str(cache)) if cache else None
        self.start()

    def start(self):
        try:
            load = ["--load", str(self.library)] if self.library else []
            self.process = subprocess.Popen([str(self.path), "--device", self.device, *load], stdin=subprocess.PIPE,
                                            text=True, stdout=subprocess.PIPE, env=self.environment)
        except OSError as problem:
            raise ProgramError(f"cannot start {self.path}: {problem}") from None

    def restart(self):
        """With a device that no kernel has crashed on."""
        self.process.kill()
        self.__exit__()
        self.start()

    def ask(self, command, **details):
        try:
            self.process.stdin.write(json.dumps({"cmd": command, **details}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it may have said why before it ended
        line = self.process.stdout.readline()
        if not line:
            raise ProgramError(f"tw_bench ended with status {self.process.wait()} at {command} {details}")
        answer = json.loads(line)
        if "error" in answer:
            raise (Unavailable if answer.get("unavailable") else ProgramError)(answer["error"])
        return answer

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.process.wait()
        self.process.stdout.close()
