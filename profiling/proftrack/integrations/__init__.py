"""`proftrack.profile` for training loops inside a library: callbacks for transformers' Trainer and for Lightning.

    training       what both need: a profile that begins, steps and ends with a training
    transformers   ProfileCallback for transformers.Trainer
    lightning      ProfileCallback for lightning.pytorch.Trainer and pytorch_lightning.Trainer

Each library is imported only by its own module.
"""
