"""The command `dq` of an installed package: the program beside this file, in the place of Python."""

import os
import pathlib
import sys


def main():
    program = pathlib.Path(__file__).parent / "bin" / "dq"
    os.execv(program, ["dq", *sys.argv[1:]])
