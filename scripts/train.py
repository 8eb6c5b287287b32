"""`swep-ds train` as a file, which launchers start: `deepspeed`, `torchrun`, `srun`, and the runs of a sweep."""

import sys

from swep_ds.__main__ import main

if __name__ == "__main__":
    sys.argv.insert(1, "train")
    main()
