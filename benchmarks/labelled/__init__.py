"""Workloads with a known regime: see benchmarks/verdict_suite.py.

    cases       what is run, which regime is right, and why
    operators   one operator, or a short chain of them
    kernels     kernels written in Triton
    models      layers, models, training steps, optimizers
    host        copies, data loading, host work, waits

Each workload builds one step on a device. None needs more than torch.
"""
