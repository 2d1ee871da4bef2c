"""Checkpoints in GGUF files: configuration, tensors and tokenizer of one file or of its parts.

The package ``gguf`` reads the files. Everything else of specjax sees the object of a config.json,
tensors with the names of Hugging Face that are read by slices, and a tokenizer of transformers.
"""
