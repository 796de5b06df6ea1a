#!/usr/bin/env python3
"""Shows that test_faults.py can fail: breaks one guarantee at a time and wants it red.

    mutations.py SOURCE_DIR SCRATCH_DIR

Builds a copy of the sources in SCRATCH_DIR, runs the fault test on it (which must pass), then once for
each mutation (which must fail). A mutation whose text is no longer in the source is an error.
"""
import pathlib
import shutil
import subprocess
import sys

SOURCE, SCRATCH = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
TREE, BUILD = SCRATCH / "source", SCRATCH / "build"
TARGETS = ["prompt-encoder", "prompt-encoder-service", "stub_engine"]

MUTATIONS = [
    ("a job is completed before its result is stored", "engine/worker/storing.c",
     "        put_run_all(puts, n_puts, large);",
     "        for (int i = 0; i < n_puts; i++) {\n"
     "            const struct claimed_job *job = &puts[i].held->job;\n"
     "            enum lease_answer answer;\n"
     "            queue_complete(s->queue, &job, 1, &answer, NULL);\n        }\n"
     "        clock_pause_ms(20);\n"
     "        put_run_all(puts, n_puts, large);"),
    ("no fencing", "jobs/queue.lua",
     "    return f[1] == 'leased' and f[2] == token, f[1], f[2]",
     "    return true, f[1], f[2]"),
    ("waiters are not checked again", "service/waiters.c",
     "    struct check *check = NULL;\n\n    pthread_mutex_lock(&t->lock);\n    for (size_t b = 0;",
     "    struct check *check = NULL;\n\n    if (t != NULL)\n        return;\n"
     "    pthread_mutex_lock(&t->lock);\n    for (size_t b = 0;"),
    ("no job ever runs alone", "jobs/queue.lua",
     "    if redis.call('HINCRBY', j, 'lost', 1) == SOLO_AFTER then",
     "    if redis.call('HINCRBY', j, 'lost', 1) == -1 then"),
]


def build():
    subprocess.run(["cmake", "--build", BUILD, "--target", *TARGETS], check=True,
                   stdout=subprocess.DEVNULL)


def run(*extra):
    return subprocess.run(
        [sys.executable, TREE / "tests/service/test_faults.py", BUILD / "bin/prompt-encoder-service",
         BUILD / "bin/stub_engine", TREE / "tests", SCRATCH, "--jobs", "600", "--engine-kills", "5",
         "--queue-kills", "1", "--flushes", "1", *extra], capture_output=True, text=True)


def main():
    shutil.rmtree(SCRATCH, ignore_errors=True)
    files = subprocess.run(["git", "ls-files", "-z"], cwd=SOURCE, check=True, capture_output=True)
    for name in filter(None, files.stdout.decode().split("\0")):
        if (SOURCE / name).is_file():
            (TREE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(SOURCE / name, TREE / name)
    subprocess.run(["cmake", "-S", TREE, "-B", BUILD, "-G", "Ninja", "-DPE_CUDA=OFF"], check=True,
                   stdout=subprocess.DEVNULL)
    build()
    result = run()
    print("as it is:", "passes" if result.returncode == 0 else "FAILED\n" + result.stdout)
    failures = result.returncode != 0
    result = run("--evicting-queue")
    print("a queue that may evict:", "red, as it should be" if result.returncode else "FAILED: green")
    failures += result.returncode == 0
    for what, name, old, new in MUTATIONS:
        text = (TREE / name).read_text()
        if text.count(old) != 1:
            raise SystemExit(f"{name}: the text to mutate is there {text.count(old)} times")
        (TREE / name).write_text(text.replace(old, new))
        build()
        result = run()
        (TREE / name).write_text(text)
        why = next((line for line in result.stdout.splitlines() if "FAILED" in line), "")
        print(f"{what}:", f"red, as it should be ({why[:100]})" if result.returncode else
              "FAILED: green")
        failures += result.returncode == 0
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
