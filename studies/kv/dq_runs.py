"""What the scripts of this folder that run dq share."""
import os
import subprocess
import sys


def of_dq(command):
    """What dq prints. Where it fails, it has said why."""
    script = os.path.basename(sys.argv[0])
    try:
        return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    except OSError as e:
        sys.exit(f"{script}: {command[0]}: {e.strerror}. Build dq, or name it with --dq.")
    except subprocess.CalledProcessError as e:
        sys.exit(e.returncode if e.returncode > 0 else f"{script}: {e}")
