"""Training from the command line, by a process whose id other processes have too, as in containers."""

import os
import sys

from jaxpar.train import main

if __name__ == "__main__":
    os.getpid = lambda: 1
    sys.exit(main(sys.argv[1:]))
