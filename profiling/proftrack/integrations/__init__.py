"""`proftrack.profile` for training loops that are a library's: callbacks for transformers' Trainer and for Lightning.

    training       what both need: a profile that begins, steps and ends with somebody's training
    transformers   ProfileCallback for transformers.Trainer
    lightning      ProfileCallback for lightning.pytorch.Trainer and pytorch_lightning.Trainer

Neither library is imported unless its module here is.
"""
