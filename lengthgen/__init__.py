"""Length generalization of attention heads: tasks, encodings, training, theory, experiments."""

__version__ = "0.1.0"
