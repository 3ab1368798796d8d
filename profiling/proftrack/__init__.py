"""proftrack: tracks torch.profiler results in MLflow."""

__version__ = "0.1.0"
__all__ = ["__version__"]
