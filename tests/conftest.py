"""One thread: the tensors are tiny, and results do not depend on the machine's cores."""

import torch

torch.set_num_threads(1)
