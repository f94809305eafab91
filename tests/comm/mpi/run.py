"""Runs test_comm_mpi under mpirun: run.py MPIRUN PROGRAM contract|wire|lost|lone.

contract  by shared memory, wire: by MPI's messages; lost: a rank stops, and another names it before mpirun ends the job
lone      a launcher's variables without a launcher that MPI knows: refused
"""
import os
import subprocess
import sys
import time

mpirun, program, what = sys.argv[1:]
environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def run(ranks):
    command = [mpirun, "--oversubscribe", "-n", str(ranks), program, what]
    begin = time.time()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    return done, time.time() - begin


if what == "lone":
    environment |= {"PMI_SIZE": "4", "PMI_RANK": "1"}
    done = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=60)
    print(done.stderr)
    assert done.returncode == 1
    assert "rank 1 of 4, and MPI that it is 0 of 1" in done.stderr
elif what == "lost":
    done, seconds = run(3)
    print(done.stderr)
    assert done.returncode != 0
    assert "Rank 2 is lost: no sign of life" in done.stderr, "rank 2 was not named"
    assert "It was at step 30, chunk 5: gathering weights." in done.stderr, "what it did was not said"
    assert seconds < 60, f"{seconds} s"
else:
    for ranks in (2, 3) if what == "wire" else (4,):
        done, _ = run(ranks)
        print(done.stdout, done.stderr)
        assert done.returncode == 0, f"{ranks} ranks: exit {done.returncode}"
        transport = "MPI" if what == "wire" else "shared memory"
        assert f"{transport}: {ranks} ranks are right" in done.stdout
